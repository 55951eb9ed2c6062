package benchrig

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/stun/v4"
)

// fakeTURN answers requests as a server with one user, u:p, and keeps them.
type fakeTURN struct {
	conn *net.UDPConn
	// odd, if not nil, may answer a request by itself; n counts those of its method from 0.
	odd oddAnswer

	mu    sync.Mutex
	seen  []stun.Message // that had valid credentials
	count map[stun.Method]int
	nonce string
}

var fakeKey = stun.NewLongTermIntegrity("u", "bench", "p")

func newFakeTURN(t *testing.T, addr string, odd oddAnswer) *fakeTURN {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeTURN{conn: conn, odd: odd, count: map[stun.Method]int{}, nonce: "first"}
	served := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-served })
	go func() { defer close(served); f.serve() }()
	return f
}

func (f *fakeTURN) addr() netip.AddrPort { return f.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (f *fakeTURN) serve() {
	buf := make([]byte, 2048)
	for {
		n, from, err := f.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		req := new(stun.Message)
		if stun.Decode(buf[:n], req) != nil {
			continue
		}
		f.mu.Lock()
		i := f.count[req.Type.Method]
		f.count[req.Type.Method]++
		f.mu.Unlock()
		if f.odd == nil || !f.odd(f, i, req, from) {
			f.answer(req, from)
		}
	}
}

func (f *fakeTURN) answer(req *stun.Message, from netip.AddrPort) {
	if nonce, err := req.Get(stun.AttrNonce); err != nil || fakeKey.Check(req) != nil {
		f.refuse(req, from, stun.CodeUnauthorized)
		return
	} else if string(nonce) != f.nonce {
		f.refuse(req, from, stun.CodeStaleNonce)
		return
	}
	f.mu.Lock()
	f.seen = append(f.seen, *req)
	f.mu.Unlock()
	var more []stun.Setter
	if req.Type.Method == stun.MethodAllocate {
		relayed := f.addr()
		more = append(more, xorRelayed{IP: relayed.Addr().AsSlice(), Port: 50_000})
	}
	if req.Type.Method != stun.MethodChannelBind {
		more = append(more, stun.RawAttribute{Type: stun.AttrLifetime, Value: binary.BigEndian.AppendUint32(nil, 600)})
	}
	f.reply(req, from, stun.ClassSuccessResponse, append(more, fakeKey)...)
}

type xorRelayed stun.XORMappedAddress

func (a xorRelayed) AddTo(m *stun.Message) error {
	return stun.XORMappedAddress(a).AddToAs(m, stun.AttrXORRelayedAddress)
}

func (f *fakeTURN) refuse(req *stun.Message, from netip.AddrPort, code stun.ErrorCode, more ...stun.Setter) {
	more = append(more, stun.ErrorCodeAttribute{Code: code, Reason: []byte("\x1b[2J")}, stun.NewRealm("bench"), stun.NewNonce(f.nonce))
	f.reply(req, from, stun.ClassErrorResponse, more...)
}

func (f *fakeTURN) reply(req *stun.Message, to netip.AddrPort, class stun.MessageClass, more ...stun.Setter) {
	head := []stun.Setter{stun.NewTransactionIDSetter(req.TransactionID), stun.NewType(req.Type.Method, class)}
	m := stun.MustBuild(append(head, more...)...)
	_, _ = f.conn.WriteToUDPAddrPort(m.Raw, to)
}

// methods are those of the requests with valid credentials.
func (f *fakeTURN) methods() (list []stun.Method) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.seen {
		list = append(list, f.seen[i].Type.Method)
	}
	return list
}

func openTURN(t *testing.T, cfg TURNConfig, family string) (*Rig, error) {
	t.Helper()
	p := Plan{Matches: 1, Players: 1, Payload: 24, Stride: 2, Sockets: 1, Batch: 16, Flows: []Link{{From: 1, To: 0}, {From: 0, To: 1}}}
	if family == FamilyIPv6 {
		p.Sockets = 2
	}
	if err := p.Place(DefaultSources(family)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := NewTURN(cfg).Open(ctx, p)
	if err == nil {
		t.Cleanup(func() { _ = r.Close() })
		err = r.Check()
	}
	if ctx.Err() != nil {
		t.Fatal("set-up did not end")
	}
	return r, err
}

// TestTURNRequests: what a server is asked for, over both families, and that all is given back.
func TestTURNRequests(t *testing.T) {
	for family, addr := range map[string]string{FamilyIPv4: "127.0.0.1:0", FamilyIPv6: "[::1]:0"} {
		f := newFakeTURN(t, addr, nil)
		r, err := openTURN(t, TURNConfig{Server: f.addr(), User: "u", Password: "p"}, family)
		if err != nil {
			t.Fatal(family, err)
		}
		relayed := netip.AddrPortFrom(f.addr().Addr(), 50_000)
		if up, down := r.Flows[0], r.Flows[1]; up.Dst != f.addr() || down.Dst != relayed || down.Prefix != nil {
			t.Errorf("%s: flows %v, %v", family, up, down)
		}
		buf := make([]byte, 304)
		if n := r.PutHeader(buf, r.Flows[0].Prefix, 300); n != 4 || string(buf[:n]) != "\x40\x00\x01\x2c" || r.PutHeader(buf, nil, 300) != 0 ||
			!r.HasHeader(buf[:304], r.Flows[0].Prefix) || r.HasHeader(buf[:303], r.Flows[0].Prefix) || r.HasHeader(buf[:3], r.Flows[0].Prefix) {
			t.Errorf("%s: header %x", family, buf[:n])
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if got := f.methods(); !slices.Equal(got, []stun.Method{stun.MethodAllocate, stun.MethodChannelBind, stun.MethodRefresh}) {
			t.Fatalf("%s: requests %v", family, got)
		}
		var peer stun.XORMappedAddress
		if err := peer.GetFromAs(&f.seen[1], stun.AttrXORPeerAddress); err != nil || uint16(peer.Port) != r.Endpoints[0].Addr.Port() {
			t.Errorf("%s: the peer is %v, %v", family, peer, err)
		}
		if _, err := f.seen[0].Get(stun.AttrRequestedAddressFamily); (err == nil) != (family == FamilyIPv6) {
			t.Errorf("%s: requested address family: %v", family, err)
		}
		if v, err := f.seen[2].Get(stun.AttrLifetime); err != nil || binary.BigEndian.Uint32(v) != 0 {
			t.Errorf("%s: the lifetime at the end is %x, %v", family, v, err)
		}
	}
}

type oddAnswer = func(f *fakeTURN, n int, req *stun.Message, from netip.AddrPort) bool

// refusing refuses a method with valid credentials.
func refusing(method stun.Method, code stun.ErrorCode, more ...stun.Setter) oddAnswer {
	return func(f *fakeTURN, _ int, req *stun.Message, from netip.AddrPort) bool {
		if req.Type.Method != method || fakeKey.Check(req) != nil {
			return false
		}
		f.refuse(req, from, code, more...)
		return true
	}
}

// allocating answers Allocate with a relayed address, or with none.
func allocating(ip net.IP, key stun.MessageIntegrity, last bool) oddAnswer {
	return func(f *fakeTURN, _ int, req *stun.Message, from netip.AddrPort) bool {
		if req.Type.Method != stun.MethodAllocate || fakeKey.Check(req) != nil {
			return false
		}
		var more []stun.Setter
		if ip != nil {
			more = append(more, xorRelayed{IP: ip, Port: 50_000})
		}
		f.reply(req, from, stun.ClassSuccessResponse, append(more, key)...)
		return last
	}
}

// TestTURNOddAnswers: a server that loses, repeats, forges or refuses, and what is said about it.
func TestTURNOddAnswers(t *testing.T) {
	elsewhere := net.IPv4(192, 0, 2, 9)
	for name, c := range map[string]struct {
		odd      oddAnswer
		password string
		want     string // in the error; "": none
	}{
		"loses the first of each": {func(_ *fakeTURN, n int, _ *stun.Message, _ netip.AddrPort) bool { return n == 0 }, "p", ""},
		"answers twice": {func(f *fakeTURN, _ int, req *stun.Message, from netip.AddrPort) bool {
			f.answer(req, from)
			return false
		}, "p", ""},
		"stale nonce": {func(f *fakeTURN, n int, req *stun.Message, _ netip.AddrPort) bool {
			if req.Type.Method == stun.MethodChannelBind && n == 0 {
				f.nonce = "second"
			}
			return false
		}, "p", ""},
		"always stale":    {refusing(stun.MethodAllocate, 438), "p", "Allocate: TURN error 438 stale nonce"},
		"forges":          {allocating(elsewhere, stun.NewLongTermIntegrity("u", "bench", "forged"), false), "p", ""},
		"wrong password":  {nil, "wrong", "Allocate: TURN error 401 unauthorized"},
		"no credentials":  {nil, "", "TURN error 401 unauthorized: it asks for credentials"},
		"another server":  {refusing(stun.MethodAllocate, 300, &stun.AlternateServer{IP: elsewhere, Port: 7}), "p", "it names 192.0.2.9:7"},
		"no such peer":    {refusing(stun.MethodChannelBind, 403), "p", "ChannelBind: TURN error 403 forbidden: it permits no such peer; coturn"},
		"earlier client":  {refusing(stun.MethodAllocate, 437), "p", "437 allocation mismatch"},
		"other family":    {refusing(stun.MethodAllocate, 440), "p", "440 address family not supported"},
		"quota":           {refusing(stun.MethodAllocate, 486), "p", "486 allocation quota reached"},
		"no port is left": {refusing(stun.MethodAllocate, 508), "p", "508 insufficient capacity"},
		"unknown":         {refusing(stun.MethodAllocate, 599), "p", "TURN error 599"},
		"remote relayed":  {allocating(elsewhere, fakeKey, true), "p", "the relayed address of 127.0.0.1"},
		"no relayed":      {allocating(nil, fakeKey, true), "p", "the relayed address of 127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeTURN(t, "127.0.0.1:0", c.odd)
			cfg := TURNConfig{Server: f.addr(), User: "u", Password: c.password}
			if c.password == "" {
				cfg.User = ""
			}
			_, err := openTURN(t, cfg, FamilyIPv4)
			switch {
			case (err == nil) != (c.want == ""), err != nil && !strings.Contains(err.Error(), c.want):
				t.Errorf("%v, want %q", err, c.want)
			case err != nil && strings.Contains(err.Error(), "\x1b"):
				t.Errorf("%q has the server's text", err)
			}
		})
	}
}

// TestTURNRefresh: channel, permission and allocation are refreshed in time, with a new nonce and
// after a loss; a refusal is named once for each refresh.
func TestTURNRefresh(t *testing.T) {
	const gone = 8 // refreshes until the allocation is gone
	f := newFakeTURN(t, "127.0.0.1:0", func(f *fakeTURN, n int, req *stun.Message, from netip.AddrPort) bool {
		switch {
		case req.Type.Method != stun.MethodRefresh:
			return false
		case n == 2:
			f.nonce = "second"
		case n == 4:
			return true // lost
		case n >= gone:
			f.refuse(req, from, stun.CodeAllocMismatch)
			return true
		}
		return false
	})
	r, err := openTURN(t, TURNConfig{Server: f.addr(), User: "u", Password: "p", RefreshAfter: time.Millisecond}, FamilyIPv4)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = r.Await(ctx, func() bool { return names["TURN error 437 allocation mismatch"] == 2 },
		func(time.Time) error { r.Maintain(); return nil }, func(ep int, _ netip.AddrPort, pkt []byte) { names[r.Explain(ep, pkt)]++ })
	if err != nil || len(names) != 2 {
		t.Fatal(err, names)
	}
	binds, refreshes := 0, 0
	for _, m := range f.methods() {
		switch m {
		case stun.MethodChannelBind:
			binds++
		case stun.MethodRefresh:
			refreshes++
		}
	}
	if binds < gone-1 || refreshes < gone-2 {
		t.Errorf("%d channels were bound again, %d allocations refreshed", binds, refreshes)
	}
}

// TestTURNExplain names what is no answer.
func TestTURNExplain(t *testing.T) {
	f := newFakeTURN(t, "127.0.0.1:0", nil)
	r, err := openTURN(t, TURNConfig{Server: f.addr(), User: "u", Password: "p"}, FamilyIPv4)
	if err != nil {
		t.Fatal(err)
	}
	of := func(method stun.Method, class stun.MessageClass, more ...stun.Setter) []byte {
		return stun.MustBuild(append([]stun.Setter{stun.TransactionID, stun.NewType(method, class)}, more...)...).Raw
	}
	for _, c := range []struct {
		ep   int
		pkt  []byte
		want string
	}{
		{1, of(stun.MethodBinding, stun.ClassSuccessResponse), Alive},
		{1, of(stun.MethodRefresh, stun.ClassSuccessResponse), ""},
		{1, of(stun.MethodData, stun.ClassIndication), turnData},
		{1, of(stun.MethodBinding, stun.ClassErrorResponse, stun.CodeBadRequest), "TURN error 400"},
		{1, of(stun.MethodBinding, stun.ClassErrorResponse), Foreign},
		{1, []byte("\x40\x00\x00\x08channel."), Foreign},
		{1, nil, Foreign},
		{-1, of(stun.MethodBinding, stun.ClassSuccessResponse), Foreign},
		{0, of(stun.MethodRefresh, stun.ClassSuccessResponse), ""},
	} {
		if got := r.Explain(c.ep, c.pkt); got != c.want {
			t.Errorf("%x is %q, want %q", c.pkt, got, c.want)
		}
	}
}

// TestTURNNoServer: a closed port and a silent one.
func TestTURNNoServer(t *testing.T) {
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	addr := silent.LocalAddr().(*net.UDPAddr).AddrPort()
	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	p := Plan{Matches: 1, Players: 1, Payload: 24, Stride: 2, Sockets: 1, Batch: 16}
	if err := p.Place(DefaultSources(FamilyIPv4)); err != nil {
		t.Fatal(err)
	}
	if _, err := NewTURN(TURNConfig{Server: addr}).Open(limited, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent server gives %v", err)
	}
	silent.Close()
	if _, err := openTURN(t, TURNConfig{Server: addr}, FamilyIPv4); err == nil || !strings.Contains(err.Error(), "the port is closed") {
		t.Errorf("a closed port gives %v", err)
	}
	if _, err := openTURN(t, TURNConfig{Server: netip.MustParseAddrPort("192.0.2.1:7")}, FamilyIPv4); !errors.Is(err, ErrRemote) {
		t.Errorf("a server elsewhere gives %v", err)
	}
}
