package process

import (
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/dataplane"
	"github.com/ferryrelay/ferry/internal/server/host/memory"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestLargeMessageLine: the line names the setting that cures it for the sender's
// way, and warns of what is dropped, in dev also of what may be.
func TestLargeMessageLine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode     Mode
		from, to string
		limit    int
		dropped  bool
		want     []string
	}{
		"udp to dtls": {Serve, "udp6", "dtls", 1400, true,
			[]string{"WARN", `"message is too large`, "(maxMessageSize: 1363) at senders on udp"}},
		"udp to dtls, forwarded": {Serve, "udp4", "dtls", 1363, false, []string{"INFO", `"message may be too large`,
			"(maxMessageSize: 1363) at senders on udp"}},
		"in dev":        {Dev, "udp4", "dtls", 1363, false, []string{"WARN", `"message may be too large`}},
		"ws to dtls":    {Relay, "ws", "dtls", 1400, true, []string{"WARN", "(maxMessageSize: 1377) at senders on ws"}},
		"udp to ws":     {Serve, "udp4", "ws", 1386, true, []string{"WARN", "(maxMessageSize: 1363) at senders on udp"}},
		"a lower limit": {Serve, "ws", "dtls", 1000, true, []string{"(maxMessageSize: 1014) at senders on ws"}},
		"dtls to ws":    {Serve, "dtls", "ws", 1386, true, []string{"(maxMessageSize: 1400) at senders on dtls"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log testkit.LogBuffer
			r := &localRelay{opts: &Options{Mode: c.mode, Logger: slog.New(slog.NewTextHandler(&log, nil))}}
			r.logLargeMessage(privateapi.LargeMessageEvent{FromTransport: c.from, ToTransport: c.to, Size: 1438, Limit: c.limit, Dropped: c.dropped})
			for _, want := range c.want {
				if !strings.Contains(log.String(), want) {
					t.Errorf("%q is missing in %s", want, log.String())
				}
			}
		})
	}
}

// keeping are options with a state file, and a log that can be read when
// nothing writes to it any more.
func keeping(file string, log *strings.Builder) Options {
	o := options(local(), Serve)
	o.Files.Allocations, o.Logger = file, slog.New(slog.NewTextHandler(log, nil))
	return o
}

func once(t *testing.T, change func(*Options), do func(running)) string {
	t.Helper()
	var log strings.Builder
	o := keeping("", &log)
	change(&o)
	r := start(t, o)
	do(r)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return log.String()
}

func nothing(running) {}

func TestStateFileLines(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "allocations")
	in := func(o *Options) { o.Files.Allocations = file }
	fresh := func(o *Options) { o.Files.Allocations, o.Fresh = file, true }
	var old []byte
	keep := func() (err error) { old, err = os.ReadFile(file); return err }
	for _, c := range []struct {
		name   string
		change func(*Options)
		before func() error
		want   string
	}{
		{"first start", fresh, nil, `level=INFO msg="state file: new"`},
		{"second start", in, keep, `level=INFO msg="state file: complete" file=` + file + ` allocations=0 may_come_back_within=1m0s closed=20`},
		{"an older copy", in, func() error { return os.WriteFile(file, old, 0o600) },
			`level=WARN msg="state file: it lacks the last changes, as an older copy does`},
		{"another user may read it", in, func() error { return os.Chmod(file, 0o644) },
			`is open to other users (mode 0644); to mend it: chmod 0600 ` + file},
		{"it was mended after a run without it", in, func() error { return os.Chmod(file, 0o600) },
			`level=WARN msg="state file: it lacks the last changes`},
		{"and is complete again", in, nil, `level=INFO msg="state file: complete"`},
		{"it was lost", in, func() error { return os.Remove(file) }, `level=WARN msg="state file: none was there`},
		{"it was damaged", in, func() error { return os.WriteFile(file, []byte("rubbish"), 0o600) }, `why="statefile: header damaged"`},
		{"it is a directory", in, func() error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
			`level=ERROR msg="state file: it cannot be written`},
		{"none is wanted", func(*Options) {}, nil, ""},
	} {
		if c.before != nil {
			if err := c.before(); err != nil {
				t.Fatal(err)
			}
		}
		log := once(t, c.change, nothing)
		if !strings.Contains(log, c.want) || strings.Count(log, `msg="state file`) != min(len(c.want), 1) {
			t.Errorf("%s: want %q in\n%s", c.name, c.want, log)
		}
	}
}

// TestCodesComeBack: a join code of the run before is known, and answered with
// "later" until its host is back, or it is certain that it will not be.
func TestCodesComeBack(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "allocations")
	in := func(o *Options) { o.Files.Allocations = file }
	var code string
	once(t, in, func(r running) {
		a, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
		if err == nil {
			code, err = r.caller(secret).JoinCode(t.Context(), a.AllocationID)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	status := func(r running) int {
		var problem *api.Problem
		if _, err := r.caller(secret).Join(t.Context(), code); !errors.As(err, &problem) {
			t.Fatalf("Join: %v", err)
		}
		return problem.Status
	}
	once(t, in, func(r running) {
		if s, p := status(r), r.operator.status.metrics(); s != 503 || p.Awaited != 1 || p.Lost != 0 || !p.Storing {
			t.Errorf("within the window: %d, %+v", s, p)
		}
	})
	once(t, func(o *Options) { in(o); o.Config.RecoverFor = 250 * time.Millisecond }, func(r running) {
		testkit.Within(t, time.Minute, "it is certain", func() bool { return r.operator.status.metrics().Lost != 0 && status(r) == 404 })
		if s, p := status(r), r.operator.status.metrics(); s != 404 || p.Awaited != 0 || p.Lost != 1 {
			t.Errorf("after it: %d, %+v", s, p)
		}
	})
}

// TestFreshIdentity: nothing can come back to a relay that has just been made.
func TestFreshIdentity(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{
		{Config: local(), Mode: Serve, Fresh: true}, {Config: local(), Mode: Dev},
	} {
		o.Identity, o.Logger = options(o.Config, o.Mode).Identity, slog.New(slog.DiscardHandler)
		r := start(t, o)
		if p := r.operator.status.metrics(); p.Awaited != 0 || p.Storing {
			t.Errorf("%+v", p)
		}
	}
}

func TestAwaited(t *testing.T) {
	t.Parallel()
	r := restart{previous: 5}
	r.lost.Store(2)
	for rebuilt, want := range map[uint64]int{0: 3, 2: 1, 3: 0, 9: 0} {
		if n := r.pending(rebuilt); n != want {
			t.Errorf("%d rebuilt: %d awaited, want %d", rebuilt, n, want)
		}
	}
}

func TestEngineConfig(t *testing.T) {
	t.Parallel()
	c := local()
	c.UDP[0] = addr("10.0.0.5:7777")
	c.Advertise = append(c.Advertise, host(t, "203.0.113.1"))
	c.HostBytes, c.RecoverFor = 0, 0
	serve, err := engineConfig(&c, Serve)
	if err != nil {
		t.Fatal(err)
	}
	var siblings []string
	for _, s := range serve.Siblings {
		siblings = append(siblings, s.String())
	}
	if got := strings.Join(siblings, " "); got != "203.0.113.1:7777" {
		t.Errorf("siblings %s: the address that players are told is the relay's own", got)
	}
	if want := (engine.Limits{JoinerDatagrams: 1000, JoinerBytes: 512 << 10, HostDatagrams: 12_000, HostBytes: -1}); serve.Limits != want {
		t.Errorf("limits %+v", serve.Limits)
	}
	if serve.AllowPrivateSources || serve.Unlimited || serve.Recovery.Window != -1 || len(serve.Advertise) != 1 ||
		serve.Advertise[0].Host != "203.0.113.1" {
		t.Errorf("serve: %+v", serve)
	}
	dev, err := engineConfig(&c, Dev)
	if err != nil || !dev.AllowPrivateSources || !dev.Unlimited || len(dev.Advertise) != 2 {
		t.Errorf("dev: %+v, %v", dev, err)
	}
}

func network(text string) config.Network {
	return config.Network{Prefix: netip.MustParsePrefix(text)}
}

// TestAdvice: an operator whose backend calls for players is told to name their addresses.
func TestAdvice(t *testing.T) {
	t.Parallel()
	c := local()
	if a := Advice(c, Serve); len(a) != 0 {
		t.Errorf("advice for tokens of players: %q", a)
	}
	c.Tokens[0].Kind = "server"
	for mode, want := range map[Mode]int{Serve: 1, API: 1, Relay: 0, Dev: 0} {
		if a := Advice(c, mode); len(a) != want || want == 1 && !strings.Contains(a[0], "playerAddress") {
			t.Errorf("%v: advice %q", mode, a)
		}
	}
	c.Tokens, c.Issuers = nil, []config.Issuer{{Kind: "server"}}
	if a := Advice(c, Serve); len(a) != 1 {
		t.Errorf("advice for an issuer of a backend's tokens: %q", a)
	}
}

// TestAdviceOfTwoNetworks: behind a NodePort or a container's proxy, the API may see other addresses
// of the players than the relay does.
func TestAdviceOfTwoNetworks(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		mode             Mode
		private, proxies bool
		want             int
	}{
		{Serve, true, true, 1}, {Serve, true, false, 0}, {Serve, false, true, 0},
		{Relay, true, false, 1}, {Relay, false, true, 0}, {API, true, true, 0}, {Dev, true, true, 0},
	} {
		c := local()
		c.AllowPrivateSources = row.private
		if row.proxies {
			c.TrustedProxies = []config.Network{network("10.0.0.0/8")}
		}
		if a := Advice(c, row.mode); len(a) != row.want || row.want == 1 && !strings.Contains(a[0], "externalTrafficPolicy: Local") {
			t.Errorf("%+v: advice %q", row, a)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	public := []config.Addr{addr("203.0.113.1:0")}
	c := local()
	if w := Warnings(c, Serve); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
	c.AdvertiseName.Host = "relay.example.org"
	c.TrustedProxies = []config.Network{network("::/0")}
	if w := Warnings(c, Serve); len(w) != 1 || !strings.Contains(w[0], "trusted_proxies") {
		t.Errorf("warnings %q", w)
	}
	c.TrustedProxies = []config.Network{network("10.0.0.0/8")}
	if w := Warnings(c, Serve); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
	for want, change := range map[string]func(*config.Config){
		"set advertise_name":   func(c *config.Config) { c.AdvertiseName = config.Name{} },
		"ws is not advertised": func(c *config.Config) { c.TrustedProxies, c.AdvertiseName, c.UDP = nil, config.Name{}, public },
		"has no effect":        func(c *config.Config) { c.WebSocket = false },
	} {
		other := c
		change(&other)
		if w := Warnings(other, Serve); len(w) != 1 || !strings.Contains(w[0], want) {
			t.Errorf("%s: warnings %q", want, w)
		}
	}
}

func TestConnLimits(t *testing.T) {
	t.Parallel()
	c := local()
	r := new(rejections)
	var lines strings.Builder
	log := slog.New(slog.NewTextHandler(&lines, nil))
	limits := connLimits(&c, r, log)
	if limits.Total != 4096 || limits.PerAddress != 256 || limits.TrustedProxies != nil || limits.IdleTimeout != 30*time.Second {
		t.Errorf("%+v", limits)
	}
	limits.OnReject(connlimit.EvictedAddress)
	limits.OnReject(connlimit.EvictedAddress)
	limits.OnReject(connlimit.RejectedTotal)
	if r.evictedAddress.Load() != 2 || r.total.Load() != 1 {
		t.Errorf("counted %d and %d", r.evictedAddress.Load(), r.total.Load())
	}
	if n := strings.Count(lines.String(), "\n"); n != 1 || !strings.Contains(lines.String(), "reason=evicted_address") {
		t.Errorf("%d lines: %s", n, lines.String())
	}
	r.note(log, connlimit.EvictedTotal, time.Now().Add(rejectionLogEvery))
	if n := strings.Count(lines.String(), "\n"); n != 2 || !strings.Contains(lines.String(), "closed_since_last_line=3") ||
		r.evictedTotal.Load() != 1 {
		t.Errorf("after a minute %d lines: %s", n, lines.String())
	}
	c.TrustedProxies = []config.Network{network("10.0.0.0/8")}
	if limits := connLimits(&c, r, log); len(limits.TrustedProxies) != 1 {
		t.Errorf("%+v", limits)
	}
}

// TestConnectionsAreLimited: a caller takes the place of one of the idle connections of its
// address, which is counted; dev lets them all in.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	for mode, limited := range map[Mode]bool{Serve: true, Dev: false} {
		c := local()
		c.MaxHTTPConnections, c.WebSocket = 32, false // 2 from one address
		r := start(t, options(c, mode))
		for range 2 {
			conn, err := net.Dial("tcp", r.apiAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		_, err := r.caller(secret).Regions(t.Context())
		if n := r.operator.status.metrics().EvictedAddress; err != nil || (n > 0) != limited {
			t.Errorf("mode %d: %v, %d evicted", mode, err, n)
		}
	}
}

// TestTrustedProxy: the limits of addresses go by what a trusted proxy says.
func TestTrustedProxy(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"127.0.0.0/8": false, "192.0.2.0/24": true} {
		c := local()
		c.PlayerPerMinute = 1000
		c.TrustedProxies = []config.Network{network(name)}
		r := start(t, options(c, Serve))
		refused := false
		calls := 120 + 10
		if want {
			calls *= 10 // until one is refused: the limit of the proxy's address refills at 2 a second
		}
		for i := 0; i < calls && !refused; i++ {
			client := r.caller("no such token 0123456789")
			client.HTTP.Transport = forwarding{client.HTTP.Transport, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}).String()}
			var problem *api.Problem
			_, err := client.Regions(t.Context())
			refused = errors.As(err, &problem) && problem.Status == 429
		}
		if refused != want {
			t.Errorf("proxies in %s: refused %v", name, refused)
		}
	}
}

type forwarding struct {
	http.RoundTripper
	caller string
}

func (f forwarding) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", f.caller)
	return f.RoundTripper.RoundTrip(r)
}

// TestShortMemory: reservations are refused while the guard reports short memory.
func TestShortMemory(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Serve))
	short := dataplane.Relay{Server: r.relay.engine.Server, HasRoom: func() bool { return false }}
	if _, err := short.ReserveHost(t.Context(), alloc.HostRequest{MaxConnections: 1}); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("ReserveHost: %v", err)
	}
	if _, err := short.ReserveJoiner(t.Context(), alloc.JoinerRequest{}); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("ReserveJoiner: %v", err)
	}
}

// TestRoomForAllocations: the default is what fits, and more than that is a
// warning.
func TestRoomForAllocations(t *testing.T) {
	t.Parallel()
	limit := memory.ProcessLimit().Bytes
	if limit == 0 {
		t.Skip("this system does not tell how much memory there is")
	}
	for _, c := range []struct {
		mode      Mode
		asked     int
		want      int
		wantInLog string
		notInLog  string
	}{
		{Serve, 5, 5, "memory limit", "max_allocations"},
		{Serve, 1 << 26, 1 << 26, "max_allocations is more than fits", "level=ERROR"},
		{Dev, 0, defaultMaxAllocations, "", "memory"},
	} {
		if c.asked == 1<<26 && memory.Fits(limit, 0, memory.Transports{}) >= 1<<26 {
			continue // a machine on which everything fits
		}
		var log strings.Builder
		o := options(local(), c.mode)
		o.Config.MaxAllocations = c.asked
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r := &localRelay{opts: &o, processors: newProcessors(&o.Config, goScheduler())}
		r.setBounds()
		if r.maxAllocations != c.want || !strings.Contains(log.String(), c.wantInLog) || strings.Contains(log.String(), c.notInLog) {
			t.Errorf("%+v: %d\n%s", c, r.maxAllocations, log.String())
		}
	}
}

// TestSeats: a relay of a fleet has a limit, since it announces its free seats.
func TestSeats(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		mode        Mode
		seats, want int
	}{
		{Serve, 0, 0}, {Dev, 0, 0}, {Serve, 10, 10}, {Serve, math.MaxInt32, math.MaxInt32}, {Relay, 0, 1000}, {Relay, 20, 20},
	} {
		r := &localRelay{opts: &Options{Mode: x.mode}, maxAllocations: 1000}
		if got := r.seats(&config.Config{MaxSeats: x.seats}); got != x.want {
			t.Errorf("%v: max_seats %d of 1000 allocations makes %d seats, want %d", x.mode, x.seats, got, x.want)
		}
	}
}
