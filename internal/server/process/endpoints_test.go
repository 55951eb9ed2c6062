package process

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/server/config"
)

func TestEndpoints(t *testing.T) {
	t.Parallel()
	proxy := func(c *config.Config) { c.TrustedProxies = []config.Network{network("10.0.0.0/8")} }
	secure := func(c *config.Config) { c.TLSCert = "cert.pem" }
	issuing := func(c *config.Config) { c.ACME = true }
	named := func(name string, port uint16) func(*config.Config) {
		return func(c *config.Config) { c.AdvertiseName = config.Name{Host: name, Port: port} }
	}
	for _, c := range []struct {
		name            string
		advertised, api string
		settings        []func(*config.Config)
		want            string // ways in by WebSocket, or "!" and a part of why not
	}{
		{"plain", "192.0.2.1:7", "0.0.0.0:8", nil, "ws 192.0.2.1 8 false"},
		{"plain, both families", "192.0.2.1:7 [2001:db8::1]:7", "[::]:8", nil, "ws 192.0.2.1 8 false, ws 2001:db8::1 8 false"},
		{"plain, the API has one family", "192.0.2.1:7 [2001:db8::1]:7", "0.0.0.0:8", nil, "ws 192.0.2.1 8 false"},
		{"plain, two ports of one address", "192.0.2.1:7 192.0.2.1:9", "0.0.0.0:8", nil, "ws 192.0.2.1 8 false"},
		{"plain, behind a translator", "203.0.113.1:7", "10.0.0.5:8", nil, "ws 203.0.113.1 8 false"},
		{"plain, on loopback", "127.0.0.1:7", "127.0.0.1:8", nil, "ws 127.0.0.1 8 false"},
		{"plain, the API alone on loopback", "192.0.2.1:7", "127.0.0.1:8", nil, "!ws is not advertised"},
		{"plain, no family in common", "[2001:db8::1]:7", "0.0.0.0:8", nil, "!ws is not advertised"},
		{"plain, the API on link-local", "[2001:db8::1]:7", "[fe80::1]:8", nil, "!ws is not advertised"},
		{"a name without TLS", "192.0.2.1:7", "0.0.0.0:8", []func(*config.Config){named("r.example", 0)}, "ws 192.0.2.1 8 false"},
		{"TLS", "192.0.2.1:7", "0.0.0.0:8", []func(*config.Config){secure, named("r.example", 0)}, "wss r.example 8 true"},
		{"TLS, mapped", "192.0.2.1:7", "0.0.0.0:8", []func(*config.Config){secure, named("r.example", 9)}, "wss r.example 9 true"},
		{"TLS, no name", "192.0.2.1:7", "0.0.0.0:8", []func(*config.Config){secure}, "!set advertise_name"},
		{"ACME", "192.0.2.1:7 [2001:db8::1]:7", "[::]:8", []func(*config.Config){issuing}, "wss 192.0.2.1 8 true, wss 2001:db8::1 8 true"},
		{"ACME, the API on IPv4", "192.0.2.1:7 [2001:db8::1]:7", "0.0.0.0:8", []func(*config.Config){issuing}, "wss 192.0.2.1 8 true"},
		{"ACME, the API on loopback", "192.0.2.1:7", "127.0.0.1:8", []func(*config.Config){issuing}, "!wss is not advertised"},
		{"ACME for a name", "192.0.2.1:7", "0.0.0.0:8", []func(*config.Config){issuing, named("b.example", 443)}, "wss b.example 443 true"},
		{"proxy", "192.0.2.1:7", "127.0.0.1:8", []func(*config.Config){proxy, named("r.example", 0)}, "wss r.example 443 true"},
		{"proxy, port", "192.0.2.1:7", "127.0.0.1:8", []func(*config.Config){proxy, named("r.example", 9)}, "wss r.example 9 true"},
		{"proxy, no name", "192.0.2.1:7", "127.0.0.1:8", []func(*config.Config){proxy}, "!set advertise_name"},
		{"TLS, proxy of TCP", "192.0.2.1:7", "0.0.0.0:8", []func(*config.Config){secure, proxy, named("r.example", 0)},
			"wss r.example 8 true"},
		{"off", "192.0.2.1:7", "0.0.0.0:8", []func(*config.Config){func(c *config.Config) { c.WebSocket = false }}, ""},
	} {
		settings := config.Serve()
		for _, change := range c.settings {
			change(&settings)
		}
		var advertised []netip.AddrPort
		var direct []string
		for _, kind := range []string{"udp", "dtls"} {
			for _, text := range strings.Fields(c.advertised) {
				addr := netip.MustParseAddrPort(text)
				direct = append(direct, fmt.Sprint(kind, " ", addr.Addr(), " ", addr.Port(), " ", kind == "dtls"))
				if kind == "udp" {
					advertised = append(advertised, addr)
				}
			}
		}
		_, why := webEndpoints(&settings, advertised, netip.MustParseAddrPort(c.api))
		want, none := strings.CutPrefix(c.want, "!")
		if none != (why != "") || none && !strings.Contains(why, want) {
			t.Errorf("%s: why not: %q", c.name, why)
		}
		if !none && want != "" {
			direct = append(direct, want)
		}
		var got []string
		for _, e := range endpoints(&settings, advertised, netip.MustParseAddrPort(c.api)) {
			got = append(got, fmt.Sprint(e.ConnectionType, " ", e.Host, " ", e.Port, " ", e.Secure))
		}
		if g, w := strings.Join(got, ", "), strings.Join(direct, ", "); g != w {
			t.Errorf("%s: the endpoints for players are %s\nwant %s", c.name, g, w)
		}
	}
}

func TestBadOrigins(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Serve, Dev} {
		c := local()
		c.AllowOrigins = []string{"game.example.org"}
		if err := Check(c, mode); err == nil || !strings.Contains(err.Error(), "rigin") {
			t.Errorf("mode %d: %v", mode, err)
		}
	}
}

// TestAdvertisedEndpoints: the endpoints for players, with ports that were chosen by
// the system. IPv4 comes first in whatever order the relay listens.
func TestAdvertisedEndpoints(t *testing.T) {
	t.Parallel()
	c := local()
	c.UDP = []config.Addr{addr("[::1]:0"), addr("127.0.0.1:0")}
	c.Advertise = []config.Host{host(t, "2001:db8::1")}
	c.Region = "moon"
	r := start(t, options(c, Dev))
	a, err := r.caller("").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	listeners := r.Listeners()
	v4, v6 := listeners[1].Addr, fmt.Sprintf("[2001:db8::1]:%d", listeners[0].Addr.Port())
	want := fmt.Sprintf("udp:%v udp:%v dtls:%v dtls:%v ws:%v", v4, v6, v4, v6, listeners[2].Addr)
	var got []string
	for _, e := range a.ServerEndpoints {
		got = append(got, e.ConnectionType+":"+net.JoinHostPort(e.Host, fmt.Sprint(e.Port)))
	}
	if strings.Join(got, " ") != want || a.Region != "moon" {
		t.Errorf("the endpoints for players are %v in %q, want %s", got, a.Region, want)
	}
	code, err := r.caller("").JoinCode(t.Context(), a.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := r.caller("").Join(t.Context(), code)
	if err != nil || !slices.Equal(joiner.ServerEndpoints, a.ServerEndpoints) {
		t.Errorf("the endpoints of a joiner are %v (%v)", joiner.ServerEndpoints, err)
	}
	regions, err := r.caller("").Regions(t.Context())
	if err != nil || len(regions) != 1 || regions[0].QoSAddress != v4.String() {
		t.Errorf("regions %v (%v)", regions, err)
	}
}

func TestHTTPS(t *testing.T) {
	t.Parallel()
	var pool *x509.CertPool
	c := local()
	c.TLSCert, c.TLSKey, pool = newCertificate(t)
	r := start(t, options(c, Serve))
	if !strings.HasPrefix(r.URL(), "https://127.0.0.1:") || r.Listeners()[1].Kind != "https" {
		t.Errorf("the API is at %s", r.URL())
	}
	caller := r.caller(secret)
	caller.HTTP.Transport = &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true,
	}
	if _, err := caller.Regions(t.Context()); err != nil {
		t.Error(err)
	}
	public := c
	public.HTTP = addr("0.0.0.0:0")
	if err := Check(public, Serve); err != nil {
		t.Errorf("HTTPS on a public address: %v", err)
	}
	if status, _ := fetch(t, "http"+strings.TrimPrefix(r.URL(), "https")); status != http.StatusBadRequest {
		t.Errorf("plain HTTP on the port of HTTPS: %d", status)
	}
}
