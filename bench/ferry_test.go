package bench_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/proto"
)

// serveAPI answers the three calls of the API with reservations of the relay. A
// join code is the text of the host's id.
func serveAPI(t *testing.T, relay *enginetest.Relay) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			t.Error(err)
		}
	}
	place := func(id proto.AllocationID, key proto.Key, data, hostData []byte) any {
		addr := relay.Addr()
		return map[string]any{"data": map[string]any{"allocation": api.Allocation{
			AllocationID: id.String(), AllocationIDBytes: id[:], Key: key[:],
			ConnectionData: data, HostConnectionData: hostData, Region: "test",
			RelayServer: api.RelayServer{IPv4: addr.Addr().String(), Port: int(addr.Port())},
			ServerEndpoints: []api.ServerEndpoint{{
				ConnectionType: "udp", Network: "udp", Host: addr.Addr().String(), Port: int(addr.Port()),
			}},
		}}}
	}
	mux.HandleFunc("POST /v1/allocate", func(w http.ResponseWriter, r *http.Request) {
		var req api.AllocateRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		res := relay.Host("host", req.MaxConnections)
		answer(w, http.StatusCreated, place(res.ID, res.Key, res.ConnectionData[:], nil))
	})
	mux.HandleFunc("POST /v1/joincode", func(w http.ResponseWriter, r *http.Request) {
		var req struct{ AllocationID string }
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		answer(w, http.StatusCreated, map[string]any{"data": map[string]any{"joinCode": req.AllocationID}})
	})
	mux.HandleFunc("POST /v1/join", func(w http.ResponseWriter, r *http.Request) {
		var req api.JoinRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		host, err := parseID(req.JoinCode)
		if err != nil {
			t.Error(err)
		}
		res := relay.Joiner("player", host)
		answer(w, http.StatusOK, place(res.ID, res.Key, res.ConnectionData[:], res.HostConnectionData[:]))
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

func parseID(text string) (id proto.AllocationID, err error) {
	err = json.Unmarshal([]byte(`"`+text+`"`), &jsonID{&id})
	return id, err
}

type jsonID struct{ id *proto.AllocationID }

func (j *jsonID) UnmarshalText(text []byte) error {
	const digits = "0123456789abcdef"
	n := 0
	for _, c := range strings.ToLower(string(text)) {
		if v := strings.IndexRune(digits, c); v >= 0 {
			j.id[n/2] = j.id[n/2]<<4 | byte(v)
			n++
		}
	}
	return nil
}

func newFerry(t *testing.T, relay *enginetest.Relay) bench.Dialect {
	t.Helper()
	d, err := bench.NewDialect(bench.DialectConfig{BaseURL: serveAPI(t, relay)})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func run(t *testing.T, cfg bench.Config, d bench.Dialect) bench.Result {
	t.Helper()
	r, err := bench.Run(t.Context(), cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ferryConfig(shape string) bench.Config {
	return bench.Config{
		Load: bench.Load{
			Shape: shape, Matches: 8, Players: 3, Rate: 4800,
			Warmup: 50 * time.Millisecond, Duration: 120 * time.Millisecond, Drain: 2 * time.Second,
		},
	}
}

func TestFerry(t *testing.T) {
	for _, shape := range []string{"pairs", "star"} {
		t.Run(shape, func(t *testing.T) {
			d := newFerry(t, enginetest.StartIdle(t, 0))
			cfg := ferryConfig(shape)
			cfg.BindRate, cfg.Keepalive = 1000, 100*time.Millisecond
			r := run(t, cfg, d)
			for try := 1; r.Binds.Sent < 120 && try < 5; try++ { // It was not calm.
				r = run(t, cfg, d)
			}
			if want := uint64(576); r.Offered != want || r.Delivered != want || r.Reordered+r.Duplicated+r.Misdelivered+r.Corrupt != 0 {
				t.Errorf("delivered %d of %d: %s, %v", r.Delivered, r.Offered, r.Causes, r.Errors)
			}
			if b := r.Binds; b.Offered != 120 || b.Sent > 120 || b.Sent != 120 && onIdleMachine(r) || b.Answered == 0 ||
				b.Latency.Samples != b.Answered {
				t.Errorf("BINDs %+v", b)
			}
			if len(r.Errors) != 0 {
				t.Errorf("errors %v", r.Errors)
			}
			if r.WireBytes != 150 {
				t.Errorf("%d bytes", r.WireBytes)
			}
		})
	}
}

// onIdleMachine reports whether no datagram of a run waited so long that a BIND
// may have become due while every endpoint had one pending.
func onIdleMachine(r bench.Result) bool {
	longest := r.Binds.Latency.Max
	for _, s := range r.Seconds {
		longest = max(longest, s.Max)
	}
	return longest < 5*time.Millisecond
}

// TestFerryTraffic sends datagrams of several sizes through the real relay, which drops those of
// another size than their header says.
func TestFerryTraffic(t *testing.T) {
	t.Parallel()
	d := newFerry(t, enginetest.StartIdle(t, 0))
	r := run(t, bench.Config{
		Load: bench.Load{
			Traffic: "netcode-8p-20hz", Players: 2, Matches: 3, Warmup: -1, Duration: 500 * time.Millisecond, Drain: 2 * time.Second,
		},
	}, d)
	if r.Offered != 240 || r.Delivered != r.Offered || len(r.Errors) != 0 {
		t.Errorf("%d of %d delivered, errors %v: %v", r.Delivered, r.Offered, r.Errors, r.Causes)
	}
}

// silentBox is a box between endpoints and a relay: it passes all on, until it is told to lie. Then it
// passes nothing on, and answers a PING by itself if it fakes.
type silentBox struct {
	fakes bool
	lies  atomic.Bool
}

func (b *silentBox) listen(t *testing.T, relay netip.AddrPort) netip.AddrPort {
	t.Helper()
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	behind := map[netip.AddrPort]*net.UDPConn{} // by endpoint
	var running sync.WaitGroup
	t.Cleanup(func() { front.Close(); running.Wait() })
	running.Go(func() {
		defer func() {
			for _, c := range behind {
				c.Close()
			}
		}()
		buf := make([]byte, 2048)
		for {
			n, from, err := front.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if b.lies.Load() {
				if t, _ := proto.ParseType(buf[:n]); b.fakes && t == proto.TypePing {
					_, _ = front.WriteToUDPAddrPort(buf[:n], from)
				}
				continue
			}
			c := behind[from]
			if c == nil {
				if c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(relay)); err != nil {
					t.Error(err)
					return
				}
				behind[from] = c
				running.Go(func() {
					buf := make([]byte, 2048)
					for {
						n, err := c.Read(buf)
						if err != nil {
							return
						}
						_, _ = front.WriteToUDPAddrPort(buf[:n], from)
					}
				})
			}
			_, _ = c.Write(buf[:n])
		}
	})
	return netip.MustParseAddrPort(front.LocalAddr().String())
}

// TestFerryIdle: whether endpoints are still there after a silence is what they play, not the answers to their
// keep-alives, which a box in between may fake.
func TestFerryIdle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		box    *silentBox
		lies   bool
		absent uint64
	}{
		"honest": {box: &silentBox{}}, "stopped": {box: &silentBox{}, lies: true, absent: 32},
		"faked PONGs": {box: &silentBox{fakes: true}, lies: true, absent: 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay := enginetest.StartIdle(t, 0)
			base := serveAPI(t, relay)
			d, err := bench.NewDialect(bench.DialectConfig{BaseURL: base, Relay: c.box.listen(t, relay.Addr())})
			if err != nil {
				t.Fatal(err)
			}
			cfg := ferryConfig("idle")
			cfg.Rate, cfg.Keepalive, cfg.Duration, cfg.Drain = 0, 100*time.Millisecond, 2*time.Second, time.Second
			cfg.OnSecond = func(s bench.Second) {
				if s.At == -2 && c.lies { // a second of silence is over
					c.box.lies.Store(true)
				}
			}
			r := run(t, cfg, d)
			k := r.Keepalives
			if r.Offered != 48*4 || r.Load.Endpoints != 32 || r.Gaps.Endpoints != 32 || r.Gaps.Absent != c.absent || len(r.Errors) != 0 {
				t.Errorf("%d of %d offered are delivered, gaps %+v, errors %v", r.Delivered, r.Offered, r.Gaps, r.Errors)
			}
			if k.Sent < 32 || k.Answered == 0 || k.Latency.Samples == 0 || k.Latency.Samples > k.Answered || k.Latency.P50 <= 0 ||
				(k.Answered < k.Sent) != (c.lies && !c.box.fakes) {
				t.Errorf("keep-alives %+v", k)
			}
			if r.CausedBy("server") != c.lies {
				t.Errorf("causes %v", r.Causes)
			}
			r.Generator.Lag.Max = 0 // The machine may be busy.
			if missed := bench.Missed(nil, &r); (len(missed) == 1) != c.lies || c.lies && missed[0].String() != "absent<=0" {
				t.Errorf("without conditions fails %v", missed)
			}
		})
	}
}

func TestFerryChurn(t *testing.T) {
	t.Parallel()
	d := newFerry(t, enginetest.StartIdle(t, 0))
	cfg := ferryConfig("churn")
	// Sessions that were due while the machine stood still until the end never began.
	cfg.Rate, cfg.Matches, cfg.SessionRate, cfg.SessionLength, cfg.Duration = 100, 1, 20, 50*time.Millisecond, time.Second
	r := run(t, cfg, d)
	c := r.Churn
	if c == nil || c.Started < 4 || c.Finished != c.Started || c.Failed+c.Skipped != 0 || len(c.Steps) != 7 {
		t.Fatalf("%+v", c)
	}
	for i, name := range []string{"allocate", "joincode", "join", "bind", "connect", "play", "leave"} {
		if s := c.Steps[i]; s.Name != name || s.Failed != 0 || s.Latency.Samples != c.Started {
			t.Errorf("step %d: %+v", i, s)
		}
	}
}

// TestFerryRefused: a server that refuses reservations ends the set-up.
func TestFerryRefused(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	d, err := bench.NewDialect(bench.DialectConfig{BaseURL: srv.URL, Relay: netip.MustParseAddrPort("127.0.0.1:9")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bench.Run(t.Context(), ferryConfig("pairs"), d); err == nil || !strings.Contains(err.Error(), "allocate") {
		t.Errorf("error %v", err)
	}
}

// TestNotOfferedByDialect: what a dialect cannot do is an error.
func TestNotOfferedByDialect(t *testing.T) {
	direct, err := bench.NewDialect(bench.DialectConfig{Name: "direct"})
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*bench.Config){
		"no handshake": func(cfg *bench.Config) { cfg.BindRate = 5 },
		"cannot repla": func(cfg *bench.Config) { cfg.ReplaceRate = 1 },
	} {
		cfg := ferryConfig("pairs")
		change(&cfg)
		if _, err := bench.Run(t.Context(), cfg, direct); !errors.Is(err, bench.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestReplace verifies that matches fall silent and are replaced while the others play, and
// that the relay's report of each end is counted. It takes the idle limit.
func TestReplace(t *testing.T) {
	t.Parallel()
	const idle = 3 * time.Second
	ferry := newFerry(t, enginetest.StartIdle(t, idle))
	cfg := ferryConfig("star")
	cfg.Rate, cfg.ReplaceRate, cfg.Drain = 800, 40, 10*time.Second
	cfg.Duration, cfg.Keepalive = 500*time.Millisecond, 500*time.Millisecond // More than all 8 matches are replaced.
	r := run(t, cfg, ferry)
	p, side := r.Replaced, uint64(r.Load.Endpoints/r.Load.Matches)
	if r.Delivered != r.Offered || len(r.Errors) != 0 {
		t.Errorf("%d of %d delivered, errors %v", r.Delivered, r.Offered, r.Errors)
	}
	if p.Arrived == 0 || p.Arrived != p.Offered || p.Refused+p.NoEndpoint+p.Failed != 0 {
		t.Errorf("arrivals %+v", p)
	}
	if p.Ended != side*p.Arrived || p.NotEnded != 0 || p.EndedEarly != 0 || p.End.Samples > 0 && p.End.Min < idle*9/10 {
		t.Errorf("%d of %d ended, %d not, %d early; at the earliest after %v", p.Ended, side*p.Arrived, p.NotEnded, p.EndedEarly, p.End.Min)
	}
}

// TestFerryPortClosed: a closed port is said at once, and not as a set-up without progress.
func TestFerryPortClosed(t *testing.T) {
	t.Parallel()
	base := serveAPI(t, enginetest.StartIdle(t, 0))
	d, err := bench.NewDialect(bench.DialectConfig{BaseURL: base, Relay: netip.MustParseAddrPort("127.0.0.1:9")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bench.Run(t.Context(), ferryConfig("pairs"), d); err == nil ||
		!strings.Contains(err.Error(), "no relay listens at UDP 127.0.0.1:9") {
		t.Errorf("error %v", err)
	}
}
