package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// Session runs a session in Go until the end of the test, bound.
func Session(t testing.TB, cfg client.Config) *client.Session {
	t.Helper()
	s, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	bounded, stop := context.WithTimeout(ctx, Within)
	defer stop()
	if err := s.Bind(bounded); err != nil {
		t.Fatal(err)
	}
	return s
}

// HostSession is a host in Go that sends back what it gets.
type HostSession struct {
	*client.Session
	Code  string                  // its join code
	Peers chan *client.Peer       // that have joined, in order
	Left  chan proto.AllocationID // peers that have left, in order
}

// Host runs a host. configure, if there is one, changes the configuration of its session.
func Host(t testing.TB, calls *api.Client, max int, configure func(*client.Config)) *HostSession {
	t.Helper()
	ticket, err := client.Reserve(t.Context(), calls, max, "")
	if err != nil {
		t.Fatal(err)
	}
	cfg := client.Config{Ticket: ticket}
	if configure != nil {
		configure(&cfg)
	}
	h := &HostSession{Session: Session(t, cfg), Peers: make(chan *client.Peer, 100), Left: make(chan proto.AllocationID, 100)}
	if h.Code, err = calls.JoinCode(t.Context(), ticket.ID.String()); err != nil {
		t.Fatal(err)
	}
	go func() { // until the session ends
		for {
			peer, err := h.Accept(context.Background())
			if err != nil {
				return
			}
			h.Peers <- peer
			go h.echo(peer)
		}
	}()
	return h
}

func (h *HostSession) echo(peer *client.Peer) {
	buf := make([]byte, proto.MaxContent)
	for {
		n, err := peer.Read(buf)
		if err != nil {
			h.Left <- peer.ID()
			return
		}
		_, _ = peer.Write(buf[:n])
	}
}

// Flood sends 12,000 datagrams a second to the first peer until stop is called.
func (h *HostSession) Flood() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	peer, done := <-h.Peers, make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for range 24 {
				_, _ = peer.Write([]byte("flood"))
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

// Join runs a player, and returns its link to the host. configure is that of [Host].
func Join(t testing.TB, calls *api.Client, code string, configure func(*client.Config)) *client.Peer {
	t.Helper()
	ticket, err := client.Redeem(t.Context(), calls, code)
	if err != nil {
		t.Fatal(err)
	}
	cfg := client.Config{Ticket: ticket}
	if configure != nil {
		configure(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), Within)
	defer cancel()
	peer, err := Session(t, cfg).Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

// Say sends a text to a peer each 50 ms until stop is called or the link ends.
func Say(peer *client.Peer, text string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := peer.Write([]byte(text)); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

// Rewrite serves the API at url with answers that are rewritten.
func Rewrite(t testing.TB, url string, answer func([]byte) []byte) (front string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := http.NewRequestWithContext(r.Context(), r.Method, url+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		out.Header = r.Header
		res, err := http.DefaultClient.Do(out)
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(res.StatusCode)
		_, _ = w.Write(answer(body))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// ShareAllocation serves the API at url, and gives all callers the allocation that the first one has got, as a
// game does that stores it.
func ShareAllocation(t testing.TB, url string) (front string) {
	t.Helper()
	var mu sync.Mutex
	var first []byte
	return Rewrite(t, url, func(body []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !bytes.Contains(body, []byte("connectionData")):
			return body
		case first == nil:
			first = body
		}
		return first
	})
}

// OneEnds waits until one of two programs with the same allocation prints a line that begins with these words, and
// returns the other one, which plays on.
func OneEnds(t testing.TB, words string, a, b *Program) (lives *Program) {
	t.Helper()
	begin := time.Now()
	testkit.Within(t, Within, "one of two ends with "+words, func() bool {
		if _, n := a.Find(words); n > 0 {
			lives = b
		} else if _, n := b.Find(words); n > 0 {
			lives = a
		}
		return lives != nil
	})
	t.Logf("after %v", time.Since(begin).Round(10*time.Millisecond))
	if _, n := lives.Find(words); n > 0 {
		t.Error("both have ended")
	}
	return lives
}

// PrependSilent serves the API at url with two endpoints before the relay's, one of each family, that do
// not answer.
func PrependSilent(t testing.TB, url string) (front string) {
	t.Helper()
	var silent strings.Builder
	for _, ip := range []string{"127.0.0.1", "::1"} {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprintf(&silent, `{"connectionType":"udp","network":"udp","host":%q,"port":%d},`, ip, conn.LocalAddr().(*net.UDPAddr).Port)
	}
	const list = `"serverEndpoints":[`
	return Rewrite(t, url, func(body []byte) []byte {
		return bytes.Replace(body, []byte(list), []byte(list+silent.String()), 1)
	})
}

// TypedCode is a join code as a chat may spell it, and SentCode what a client sends of it.
const (
	TypedCode = " 7B\u00a0C\u200b-O\u2013\u22120\ufeff\tg\u3000\u2028"
	SentCode  = "7BCO0g"
)

// JoinCodes serves an API that knows no match, and returns the join codes that it is asked for.
func JoinCodes(t testing.TB) (url string, codes chan string) {
	t.Helper()
	codes = make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ JoinCode string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		codes <- body.JoinCode
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, codes
}

// An Address is one that a game may give a client as its server's.
type Address struct {
	// URL has ADDR in place of the server's HOST:PORT, and PORT of its port.
	URL string
	// Path is that of the call that arrives; empty: the client refuses the address, and calls no server.
	Path string
}

// Addresses are strange ones, and what clients do with them.
func Addresses() []Address {
	return []Address{
		{"http://ADDR", "/v1/join"}, {"http://ADDR/", "/v1/join"}, {"HTTP://ADDR", "/v1/join"},
		{"http://localhost:PORT", "/v1/join"}, {"http://ADDR/games/", "/games/v1/join"},
		{"", ""}, {"ADDR", ""}, {"localhost:PORT", ""}, {"//ADDR", ""}, {"/v1", ""}, {"ADDR/http://ADDR", ""},
		{"ftp://ADDR", ""}, {"ws://ADDR", ""}, {"httpx://ADDR", ""}, {"http:/ADDR", ""}, {"http//ADDR", ""},
		{"http://", ""}, {"http:///v1", ""}, {"http://user:word@ADDR", ""}, {"http://ADDR@example.org", ""},
		{"http://ADDR?a=b", ""}, {"http://ADDR#a", ""}, {"http://ADDR0000", ""}, {"http://ADDRx", ""}, {"http://[::1", ""},
		{"http://::1:PORT", ""},
	}
}

// TestAddresses gives all [Addresses] to a client; join makes it join with a URL and a token, and reports whether
// it accepted the URL, whatever came of the call.
func TestAddresses(t *testing.T, join func(t *testing.T, url, token string) (accepted bool)) {
	t.Helper()
	for _, a := range Addresses() {
		t.Run(a.URL, func(t *testing.T) {
			t.Parallel()
			paths := make(chan string, 10)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Access-Control-Allow-Origin", "*") // for a page
				w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
				if r.Method == http.MethodOptions {
					return
				}
				paths <- r.URL.Path
				w.WriteHeader(http.StatusNotFound)
			}))
			t.Cleanup(srv.Close)
			addr := strings.TrimPrefix(srv.URL, "http://")
			_, port, _ := net.SplitHostPort(addr)
			accepted := join(t, strings.NewReplacer("ADDR", addr, "PORT", port).Replace(a.URL), "token-0123456789")
			srv.Close() // waits for the call
			close(paths)
			if path := <-paths; path != a.Path || accepted != (a.Path != "") {
				t.Errorf("accepted: %t; a call of %q, want %q", accepted, path, a.Path)
			}
		})
	}
}

// ChangeAddress calls before, gives this machine another IP address, and calls after. It needs
// [testkit.InNamespace].
func ChangeAddress(t testing.TB, before, after func()) {
	t.Helper()
	use := func(addr string) {
		t.Helper()
		testkit.IP(t, "addr add "+addr+"/32 dev lo")
		testkit.IP(t, "route replace local 127.0.0.1 dev lo table local src "+addr)
	}
	testkit.IP(t, "link set lo up")
	use("198.18.0.2")
	before()
	testkit.IP(t, "addr del 198.18.0.2/32 dev lo")
	use("198.18.0.3")
	after()
}
