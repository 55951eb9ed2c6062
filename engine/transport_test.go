package engine

import (
	"bytes"
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// pipeMessage is the largest message to a session of a pipe in bytes.
const pipeMessage = 200

// pipe is a transport whose sessions are in this process.
type pipe struct {
	sent  [3]chan []byte // by serial
	in    chan Intake
	ended atomic.Bool
}

func newPipe() *pipe {
	p := &pipe{in: make(chan Intake, 1)}
	for i := range p.sent {
		p.sent[i] = make(chan []byte, 8)
	}
	return p
}

func (p *pipe) Name() string { return "pipe" }

func (p *pipe) MaxMessage() int { return pipeMessage }

func (p *pipe) IsOpen(uint64) bool { return true }

func (p *pipe) Send(serial uint64, pkt []byte) bool {
	if serial >= uint64(len(p.sent)) {
		return false
	}
	select {
	case p.sent[serial] <- bytes.Clone(pkt):
		return true
	default:
		return false
	}
}

func (p *pipe) Run(ctx context.Context, in Intake) error {
	p.in <- in
	<-ctx.Done()
	p.ended.Store(true)
	return nil
}

func (p *pipe) next(t *testing.T, serial uint64) []byte {
	t.Helper()
	select {
	case pkt := <-p.sent[serial]:
		return pkt
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came within 10 s")
		return nil
	}
}

type asker struct {
	t    *testing.T
	conn *net.UDPConn
}

func newAsker(t *testing.T, s *Server) asker {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return asker{t, conn}
}

func (a asker) ask(pkt []byte) []byte {
	a.t.Helper()
	a.conn.Write(pkt)
	return a.hear()
}

func (a asker) hear() []byte {
	a.t.Helper()
	a.conn.SetReadDeadline(time.Now().Add(15 * time.Second))
	answer := make([]byte, 2048)
	n, err := a.conn.Read(answer)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer[:n]
}

func bindOf(r alloc.Reservation) []byte {
	var signer proto.Signer
	return signer.Append(nil, proto.Bind{ConnectionData: r.ConnectionData[:]}, &r.Key)
}

type pipeMatch struct {
	*Server
	*pipe
	in           Intake
	udp          asker
	host, joiner alloc.Reservation
	stop         func()
}

func newPipeMatch(t *testing.T, cfg Config) *pipeMatch {
	t.Helper()
	m := &pipeMatch{pipe: newPipe()}
	cfg.Transports = []Transport{m.pipe}
	var err error
	if m.Server, err = New(cfg, testIdentity(t)); err != nil {
		t.Fatal(err)
	}
	m.stop = runServer(t, m.Server)
	m.in = <-m.pipe.in
	if m.host, err = m.ReserveHost(t.Context(), alloc.HostRequest{MaxConnections: 1}); err != nil {
		t.Fatal(err)
	}
	if m.joiner, err = m.ReserveJoiner(t.Context(), alloc.JoinerRequest{Host: m.host.ID}); err != nil {
		t.Fatal(err)
	}
	if !m.in.Deliver(1, bindOf(m.host)) || len(m.next(t, 1)) != proto.HeaderLen {
		t.Fatal("the host is not bound")
	}
	m.udp = newAsker(t, m.Server)
	m.udp.ask(bindOf(m.joiner))
	accepted := m.udp.ask(proto.ConnectRequest{ID: m.joiner.ID, ConnectionData: m.joiner.HostConnectionData[:]}.Append(nil))
	if _, err := proto.ParseAccepted(accepted); err != nil {
		t.Fatalf("%x: %v", accepted, err)
	}
	return m
}

func runServer(t *testing.T, s *Server) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
}

func TestTransport(t *testing.T) {
	m := newPipeMatch(t, Config{Sockets: Sockets{Workers: 2}})
	host, joiner, in := m.host, m.joiner, m.in
	up := proto.Relay{From: joiner.ID, To: host.ID, Payload: []byte("up")}.Append(nil)
	m.udp.conn.Write(up)
	if got := m.next(t, 1); !bytes.Equal(got, up) {
		t.Errorf("the host got %x", got)
	}
	down := proto.Relay{From: host.ID, To: joiner.ID, Payload: []byte("down")}.Append(nil)
	in.Deliver(1, down)
	if got := m.udp.hear(); !bytes.Equal(got, down) {
		t.Errorf("the player got %x", got)
	}
	in.Deliver(1, nil)
	if got := m.next(t, 1); len(got) != 0 {
		t.Errorf("the answer to a sign of life is %x", got)
	}
	in.Deliver(2, nil) // not bound: no answer
	// A session is not a UDP source with the same number, nor another session.
	in.Deliver(2, proto.Ping{ID: host.ID}.Append(nil))
	if got := m.next(t, 2); len(got) != errorLen {
		t.Errorf("another session got %x", got)
	}
	if in.Deliver(1, make([]byte, intakeSlotSize+1)) {
		t.Error("too large a message was taken")
	}
	if m.stop(); !m.pipe.ended.Load() {
		t.Error("the transport has not ended")
	}
	if in.Deliver(1, down) {
		t.Error("a message was taken after the end")
	}
}

func TestIntakeFull(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	in := newIntake(s.workers[0], endpoint.KindSession)
	for i := range intakeSlots + 3 {
		if got := in.deliver(1, []byte{1}); got != (i < intakeSlots) {
			t.Fatalf("message %d: taken %v", i, got)
		}
	}
}

func TestRecords(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	session := driver.Session{Serial: 7, ID: proto.AllocationID(s.unboundJoiner().id)}
	s.secure(session)
	w := s.workers[workerOf(atUnknown)]
	e := sessionSender{records: &fakeRecords{session: session}, sealed: make([]byte, 2*recordRoom)}
	in := func(pkt []byte, want outcome) {
		t.Helper()
		if o := w.handleDatagram(s.now, endpointAt(atUnknown), append([]byte{23}, pkt...), false); o != want {
			t.Fatalf("%v, want %v", o, want)
		}
		w.out.reset()
	}
	in(signed(s.unboundJoiner(), 0, s.unboundJoiner().key), outcomePending)
	relay := &recordsRelay{shared: s.shared}
	if relay.IsBound(7) {
		t.Error("the session is bound before control has accepted its BIND")
	}
	s.control.runOnce(s.now)
	if !relay.IsBound(7) || relay.IsBound(8) {
		t.Error("the session is not bound")
	}
	s.control.records = w.records
	page := s.control.list(&Filter{Transport: "dtls"}, 0, 10)
	if len(page.found) != 1 || page.found[0].Endpoint != endpointAt(atUnknown).AddrPort() {
		t.Errorf("the list has %+v, want the source of the session", page.found)
	}
	in(pingMessage(s.unboundJoiner().id), outPong)
	in(connectMessage(s.unboundJoiner().id, s.unboundJoiner().ticket), outcomePending)
	s.control.runOnce(s.now)
	in(relayMessage(s.unboundJoiner().id, s.hostData().id, 5), outRelayed)
	if o := w.handleDatagram(s.now, endpointAt(atUnknown), pingMessage(s.unboundJoiner().id), false); o != dropPlain {
		t.Errorf("a plain PING from there: %v", o)
	}
	room := e.sealed[:0:recordRoom]
	if record, to, ok := e.records.Seal(room, 7, []byte("x")); !ok || string(record) != "\x17x" || to != endpointAt(atUnknown) {
		t.Errorf("%q to %v, %v", record, to, ok)
	}
	gone := sessionDatagram{to: endpoint.Serial(endpoint.KindSession, 7)}
	if e.send(&gone, 0) {
		t.Error("sent to a transport that is not there")
	}
}

// fakeRecords has one session, at atUnknown: its records are a byte of 23 and
// the message.
type fakeRecords struct {
	session driver.Session
	full    bool
}

func (f *fakeRecords) Open(from endpoint.Endpoint, pkt []byte) (driver.Session, []byte) {
	if pkt[0] != 23 || !f.Alive(from) {
		return driver.Session{}, nil
	}
	return f.session, pkt[1:]
}

func (f *fakeRecords) Alive(from endpoint.Endpoint) bool {
	return f.session.Serial != 0 && from == endpointAt(atUnknown)
}

func (f *fakeRecords) Seal(dst []byte, serial uint64, msg []byte) ([]byte, endpoint.Endpoint, bool) {
	return append(append(dst, 23), msg...), endpointAt(atUnknown), serial == f.session.Serial
}

func (f *fakeRecords) Source(serial uint64) (endpoint.Endpoint, bool) {
	return endpointAt(atUnknown), serial == f.session.Serial
}

func (f *fakeRecords) Driver() driver.Records { return f }

func (f *fakeRecords) MaxMessage() int  { return 1400 }
func (f *fakeRecords) SafeMessage() int { return 1363 }

func (f *fakeRecords) HasRoom(driver.Owner) bool { return !f.full }

func (f *fakeRecords) Begin(driver.RecordsRelay) {}

func (f *fakeRecords) Run(ctx context.Context, _ driver.RecordsRelay) error {
	<-ctx.Done()
	return nil
}

func (s *sim) secure(session driver.Session) {
	for _, w := range s.workers {
		w.records = &fakeRecords{session: session}
	}
}

// TestLargeReportRetried: while the ring is full, a large message is dropped and
// its report is lost; the next one is reported, and then none of the match.
func TestLargeReportRetried(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	s.joiner1AtIPv6()
	w := s.workers[workerOf(atHost)]
	send := func(content int, want outcome) {
		t.Helper()
		if o := w.handleDatagram(s.now, endpointAt(atHost), relayMessage(s.hostData().id, s.joiner1().id, content), false); o != want {
			t.Fatalf("%v, want %v", o, want)
		}
	}
	w.inbox.unlimited = true
	for o := outcomePending; o == outcomePending; {
		_, o = w.inbox.push(known, &command{kind: proto.TypeClose})
	}
	send(mMaxMessage, dropReceiverSize)
	for w.inbox.rings[known].size() > 0 {
		s.control.runOnce(s.now)
	}
	if len(s.reports) != 0 {
		t.Fatalf("reported %+v", s.reports)
	}
	send(mSafeMessage-38, outRelayed)
	send(mSafeMessage-38+1, outRelayed)
	for range 5 {
		send(mMaxMessage, dropReceiverSize)
		s.control.runOnce(s.now)
	}
	want := []mReport{{s.hostData().id, s.hostData().id, s.joiner1().id, mSafeMessage + 1, mSafeMessage, false}}
	if !slices.Equal(s.reports, want) {
		t.Errorf("reported %+v, want %+v", s.reports, want)
	}
}

// TestLargeNotCharged: what is dropped for its size takes nothing of the sender's quota.
func TestLargeNotCharged(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	s.joiner1AtIPv6()
	for range 2 * mHostQuota[0] {
		s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, mMaxMessage))
	}
	s.datagram(atHost, relayMessage(s.hostData().id, s.joiner1().id, 1))
	s.settle()
	s.compare()
	if got := s.totals(); s.err != nil || got[dropReceiverSize] != uint64(2*mHostQuota[0]) || got[outRelayed] != 1 {
		t.Errorf("dropped %d, relayed %d, %v", got[dropReceiverSize], got[outRelayed], s.err)
	}
}

// TestLargeToTransport: what is larger than its receiver accepts is counted, and reported once.
func TestLargeToTransport(t *testing.T) {
	reports := make(chan privateapi.LargeMessageEvent, 8)
	m := newPipeMatch(t, Config{
		Sockets: Sockets{Workers: 1}, Records: &fakeRecords{},
		Hooks: Hooks{Private: privateapi.Hooks{OnLargeMessage: func(e privateapi.LargeMessageEvent) { reports <- e }}},
	})
	host, joiner := m.host, m.joiner
	for _, size := range []int{pipeMessage + 1, pipeMessage + 2, pipeMessage} {
		m.udp.conn.Write(relayMessage(mID(joiner.ID), mID(host.ID), size-38))
	}
	if got := m.next(t, 1); len(got) != pipeMessage {
		t.Errorf("the host got %d bytes", len(got))
	}
	for id, want := range map[proto.AllocationID]uint32{host.ID: 2, joiner.ID: 0} {
		page, _, err := m.Allocations(t.Context(), Filter{ID: id}, 0, 1)
		if err != nil || len(page) != 1 || page[0].LargeDrops != want {
			t.Errorf("%v: want %d large messages dropped, %v", page, want, err)
		}
	}
	want := privateapi.LargeMessageEvent{
		Match: host.ID, From: joiner.ID, To: host.ID, FromTransport: "udp4", ToTransport: "pipe",
		Size: pipeMessage + 1, Limit: pipeMessage, Dropped: true,
	}
	select {
	case got := <-reports:
		if got != want {
			t.Errorf("reported %+v, want %+v", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Error("no report within 20 s")
	}
	if m.stop(); len(reports) != 0 {
		t.Errorf("%d more reports", len(reports))
	}
	sizes := m.shared.rules.messages
	if sizes.safe[endpoint.KindDTLS] != 1363 || sizes.most[endpoint.KindDTLS] != 1400 || sizes.safe[endpoint.KindUDP6] != 1<<16-1 {
		t.Errorf("%+v", sizes)
	}
}

// TestRecordsRelay: records learn which allocations can be bound, and to which sessions
// one is bound; what they send leaves with Flush, or when a batch is full.
func TestRecordsRelay(t *testing.T) {
	s, err := New(Config{Sockets: Sockets{Workers: 1}, Records: &fakeRecords{}}, testIdentity(t))
	if err != nil {
		t.Fatal(err)
	}
	stop := runServer(t, s)
	<-s.Ready()
	host, err := s.ReserveHost(t.Context(), alloc.HostRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := newRecordsRelay(s)
	unknown := proto.AllocationID{1}
	if !r.MayBind(host.ID) || r.MayBind(unknown) != s.shared.recovering(s.shared.clock()) {
		t.Error("MayBind")
	}
	if r.IsBound(7) {
		t.Error("a session without an allocation is bound")
	}
	udp := newAsker(t, s)
	to := endpoint.UDP(udp.conn.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0)
	for i := range driver.HandshakeBatch + 1 {
		r.Send(to, []byte{byte(i)})
	}
	if r.n != 1 {
		t.Errorf("%d datagrams wait after a full batch", r.n)
	}
	r.Flush()
	var got [2]byte
	for i := range driver.HandshakeBatch + 1 {
		udp.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := udp.conn.Read(got[:]); err != nil || n != 1 || int(got[0]) != i {
			t.Fatalf("datagram %d: % x, %v", i, got[:n], err)
		}
	}
	stop()
}

// TestMayBind: after a restart, allocations of the previous run can be bound until the
// recovery window ends.
func TestMayBind(t *testing.T) {
	s := newMatch(t, newIdentity(t))
	r := &recordsRelay{shared: s.shared}
	id := proto.AllocationID(s.hostData().id)
	if !r.MayBind(id) {
		t.Error("an allocation that lives cannot be bound")
	}
	lost := proto.AllocationID{1, 2}
	for _, window := range []bool{true, false} {
		s.shared.rules.recoverUntil = 0
		if window {
			s.shared.rules.recoverUntil = s.now + 1
		}
		s.shared.previousRun = &previousRun{index: map[proto.AllocationID]int{lost: 0}, left: statefile.PreviousRun{Complete: true}}
		if r.MayBind(lost) != window || r.MayBind(proto.AllocationID{3}) {
			t.Errorf("in the window %v: %v", window, r.MayBind(lost))
		}
		s.shared.previousRun = &previousRun{}
		if r.MayBind(lost) != window {
			t.Errorf("without a state file, in the window %v: %v", window, r.MayBind(lost))
		}
	}
}

type namedTransport struct {
	*pipe
	name string
}

func (n namedTransport) Name() string { return n.name }

func TestTransportNames(t *testing.T) {
	named := func(names ...string) (all []Transport) {
		for _, name := range names {
			all = append(all, namedTransport{newPipe(), name})
		}
		return all
	}
	for want, transports := range map[string][]Transport{
		`"udp6" is taken`: named("udp6"), `"dtls" is taken`: named("a", "dtls"), `"A B"`: named("A B"), `"" is taken`: named(""),
		`two with the name "ws"`: named("ws", "ws"), "want at most 12": named(strings.Split("a b c d e f g h i j k l m", " ")...),
	} {
		s, err := New(Config{Transports: transports}, testIdentity(t))
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
