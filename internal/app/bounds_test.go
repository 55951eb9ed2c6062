package app

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/memory"
	"github.com/ferryrelay/ferry/internal/table"
)

func network(text string) config.Network {
	return config.Network{Prefix: netip.MustParsePrefix(text)}
}

func TestWarnings(t *testing.T) {
	public := []config.Addr{addr("203.0.113.1:0")}
	c := local()
	if w := Warnings(c, Serve); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
	c.BehindProxy, c.AdvertiseName.Host = true, "relay.example.org"
	if w := Warnings(c, Serve); len(w) != 1 || !strings.Contains(w[0], "trusted_proxies") {
		t.Errorf("warnings %q", w)
	}
	if w := Warnings(c, Dev); len(w) != 0 {
		t.Errorf("dev has no limits, and warns %q", w)
	}
	c.TrustedProxies = []config.Network{network("10.0.0.0/8")}
	if w := Warnings(c, Serve); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
	for want, change := range map[string]func(*config.Config){
		"set advertise_name": func(c *config.Config) { c.AdvertiseName = config.Name{} },
		"ws is not advertised":     func(c *config.Config) { c.BehindProxy, c.AdvertiseName, c.UDP = false, config.Name{}, public },
		"has no effect":      func(c *config.Config) { c.WebSocket = false },
	} {
		other := c
		change(&other)
		if w := Warnings(other, Serve); len(w) != 1 || !strings.Contains(w[0], want) {
			t.Errorf("%s: warnings %q", want, w)
		}
	}
}

func TestConnLimits(t *testing.T) {
	c := local()
	r := new(rejections)
	limits := connLimits(&c, r)
	if limits.Total != 4096+4096 || limits.PerAddress != 64+64 || limits.TrustedProxies != nil {
		t.Errorf("%+v", limits)
	}
	limits.OnReject(httpapi.RejectedAddress)
	limits.OnReject(httpapi.RejectedAddress)
	limits.OnReject(httpapi.RejectedTotal)
	if r.address.Load() != 2 || r.total.Load() != 1 {
		t.Errorf("counted %d and %d", r.address.Load(), r.total.Load())
	}
	c.BehindProxy = true
	if limits := connLimits(&c, r); limits.PerAddress != 4096+4096 {
		t.Errorf("an unnamed proxy may have %d connections", limits.PerAddress)
	}
	c.TrustedProxies = []config.Network{network("10.0.0.0/8")}
	if limits := connLimits(&c, r); limits.PerAddress != 64+64 || len(limits.TrustedProxies) != 1 {
		t.Errorf("%+v", limits)
	}
	c.WebSocket = false
	if limits := connLimits(&c, r); limits.Total != 4096 || limits.PerAddress != 64 {
		t.Errorf("without WebSockets: %+v", limits)
	}
}

// TestConnectionsAreLimited: one more than an address may have is closed, and
// counted; dev lets them all in.
func TestConnectionsAreLimited(t *testing.T) {
	for mode, refused := range map[Mode]bool{Serve: true, Dev: false} {
		c := local()
		c.MaxAddressConnections, c.WebSocket = 2, false
		r := start(t, options(c, mode))
		for range 2 {
			conn, err := net.Dial("tcp", r.api.addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		_, err := r.caller(secret).Regions(t.Context())
		if n := r.process().RefusedAddress; (err != nil) != refused || (n > 0) != refused {
			t.Errorf("mode %d: %v, %d refused", mode, err, n)
		}
	}
}

// TestTrustedProxy: the limits of addresses go by what a trusted proxy says.
func TestTrustedProxy(t *testing.T) {
	for name, want := range map[string]bool{"127.0.0.0/8": false, "192.0.2.0/24": true} {
		c := local()
		c.AddressPerMinute, c.PlayerPerMinute = 5, 1000
		c.TrustedProxies = []config.Network{network(name)}
		r := start(t, options(c, Serve))
		refused := false
		for i := range 10 {
			client := r.caller(secret)
			client.HTTP.Transport = forwarding{client.HTTP.Transport, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}).String()}
			var problem *api.Problem
			_, err := client.Regions(t.Context())
			refused = refused || errors.As(err, &problem) && problem.Status == 429
		}
		if refused != want {
			t.Errorf("proxies in %s: refused %v", name, refused)
		}
	}
}

// forwarding is a proxy that says for whom it calls.
type forwarding struct {
	http.RoundTripper
	caller string
}

func (f forwarding) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", f.caller)
	return f.RoundTripper.RoundTrip(r)
}

// TestShortMemory: what the guard says, reservations hear.
func TestShortMemory(t *testing.T) {
	r := start(t, options(local(), Serve))
	relay, err := r.advertised()
	if err != nil {
		t.Fatal(err)
	}
	short := relay
	short.room = func() bool { return false }
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
		{Dev, 0, table.DefaultMaxAllocations, "", "memory"},
	} {
		if c.asked == 1<<26 && memory.Fits(limit, 0, memory.Ways{}) >= 1<<26 {
			continue // a machine on which everything fits
		}
		var log strings.Builder
		o := options(local(), c.mode)
		o.Config.MaxAllocations = c.asked
		a := &App{opts: o}
		a.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
		a.setBounds()
		if a.maxAllocations != c.want || !strings.Contains(log.String(), c.wantInLog) || strings.Contains(log.String(), c.notInLog) {
			t.Errorf("%+v: %d\n%s", c, a.maxAllocations, log.String())
		}
	}
}
