package process

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

func host(t *testing.T, text string) config.Host {
	t.Helper()
	var h config.Host
	if err := h.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		change     func(*config.Config)
		serve, dev error // nil: no refusal
	}{
		{"on loopback", func(*config.Config) {}, nil, nil},
		{"no token", func(c *config.Config) { c.Tokens = nil }, ErrNoToken, nil},
		{"plain HTTP everywhere", func(c *config.Config) { c.HTTP = addr("0.0.0.0:0") }, ErrPlainHTTP, nil},
		{"plain HTTP everywhere, IPv6", func(c *config.Config) { c.HTTP = addr("[::]:0") }, ErrPlainHTTP, nil},
		{"plain HTTP in a private network", func(c *config.Config) { c.HTTP = addr("10.0.0.1:0") }, ErrPlainHTTP, nil},
		{"behind a proxy", func(c *config.Config) {
			c.HTTP, c.TrustedProxies = addr("0.0.0.0:0"), []config.Network{network("10.0.0.1/32")}
		}, nil, nil},
		{"public admin", func(c *config.Config) { c.Admin = addr("0.0.0.0:0") }, admin.ErrPublic, admin.ErrPublic},
		{"public admin, allowed", func(c *config.Config) { c.Admin, c.AdminPublic = addr("0.0.0.0:0"), true }, nil, nil},
		{"short secret", func(c *config.Config) { c.Tokens[0].Secret = "short" }, httpapi.ErrConfig, httpapi.ErrConfig},
		{"no project", func(c *config.Config) { c.Tokens[0].Project = "" }, httpapi.ErrConfig, httpapi.ErrConfig},
		{"token twice", func(c *config.Config) { c.Tokens = append(c.Tokens, c.Tokens[0]) }, httpapi.ErrConfig, httpapi.ErrConfig},
		{"link-local, advertised", func(c *config.Config) {
			c.UDP, c.Advertise = []config.Addr{addr("[::]:0")}, []config.Host{host(t, "fe80::1")}
		}, ErrLinkLocal, ErrLinkLocal},
		{"link-local of IPv4, advertised", func(c *config.Config) {
			c.UDP, c.Advertise = []config.Addr{addr("0.0.0.0:0")}, []config.Host{host(t, "169.254.7.7")}
		}, ErrLinkLocal, ErrLinkLocal},
		{"link-local, listened at", func(c *config.Config) {
			c.UDP, c.Advertise = []config.Addr{addr("[fe80::1]:0")}, []config.Host{host(t, "2001:db8::1")}
		}, ErrLinkLocal, ErrLinkLocal},
		{"wildcard, advertised", func(c *config.Config) {
			c.UDP = []config.Addr{addr("0.0.0.0:0"), addr("[::]:0")}
			c.Advertise = []config.Host{host(t, "203.0.113.1"), host(t, "2001:db8::1")}
		}, nil, nil},
	} {
		for mode, want := range map[Mode]error{Serve: c.serve, Dev: c.dev} {
			settings := local()
			c.change(&settings)
			err := Check(settings, mode)
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%s, mode %d: %v, want %v", c.name, mode, err, want)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the secret is in the error: %v", c.name, err)
			}
			if err == nil {
				continue
			}
			if a, err := New(options(settings, mode)); err == nil {
				t.Errorf("%s, mode %d: New takes what Check refuses", c.name, mode)
				a.Close()
			}
		}
	}
}

func TestRefusalsTogether(t *testing.T) {
	t.Parallel()
	c := config.Serve()
	c.Admin = addr("0.0.0.0:0")
	err := Check(c, Serve)
	for _, want := range []error{ErrNoToken, ErrPlainHTTP, admin.ErrPublic} {
		if !errors.Is(err, want) {
			t.Errorf("%v is missing in %v", want, err)
		}
	}
}

func TestNoCertificate(t *testing.T) {
	t.Parallel()
	c := local()
	c.TLSCert, c.TLSKey = filepath.Join(t.TempDir(), "no"), "no"
	if err := Check(c, Serve); err == nil || !strings.Contains(err.Error(), "tls_cert") {
		t.Errorf("%v", err)
	}
}

func TestAdvertise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, listen, hosts, own string
		want                     string // an error begins with "!"
	}{
		{"specific address", "192.0.2.1:7", "", "", "192.0.2.1:7"},
		{"specific address behind a translator", "10.0.0.5:7", "203.0.113.1", "", "203.0.113.1:7"},
		{"mapped port", "10.0.0.5:7", "203.0.113.1:30007", "", "203.0.113.1:30007"},
		{"wildcard, advertised", "0.0.0.0:7", "203.0.113.1", "198.51.100.1", "203.0.113.1:7"},
		{"wildcard, one address", "0.0.0.0:7", "", "198.51.100.1 2001:db8::1", "198.51.100.1:7"},
		{"wildcard, no address", "0.0.0.0:7", "", "", "!--advertise"},
		{"wildcard, two addresses", "0.0.0.0:7", "", "198.51.100.1 198.51.100.2", "!--advertise"},
		{"wildcard, only the other family", "[::]:7", "", "198.51.100.1", "!--advertise"},
		{"both families", "0.0.0.0:7 [::]:7", "203.0.113.1 2001:db8::5", "", "203.0.113.1:7 [2001:db8::5]:7"},
		{"both families, one advertised", "0.0.0.0:7 [::]:7", "203.0.113.1", "", "!--advertise"},
		{"both families, one found", "0.0.0.0:7 [::]:7", "203.0.113.1", "2001:db8::1", "203.0.113.1:7 [2001:db8::1]:7"},
		{"advertised twice", "0.0.0.0:7", "203.0.113.1 203.0.113.2", "", "!of one address family"},
		{"advertised without effect", "0.0.0.0:7", "2001:db8::1", "198.51.100.1", "!listens on no address of the family"},
	} {
		var listen []netip.AddrPort
		for _, l := range strings.Fields(c.listen) {
			listen = append(listen, netip.MustParseAddrPort(l))
		}
		var hosts []config.Host
		for _, h := range strings.Fields(c.hosts) {
			hosts = append(hosts, host(t, h))
		}
		var own []netip.Addr
		for _, o := range strings.Fields(c.own) {
			own = append(own, netip.MustParseAddr(o))
		}
		got, err := advertise(listen, hosts, own)
		if part, wrong := strings.CutPrefix(c.want, "!"); wrong {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, %v", c.name, got, err)
			}
			continue
		}
		var texts []string
		for _, a := range got {
			texts = append(texts, a.String())
		}
		if strings.Join(texts, " ") != c.want || err != nil {
			t.Errorf("%s: %v, %v", c.name, texts, err)
		}
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"198.51.100.1": true, "2001:db8::1": true, "10.0.0.1": false, "192.168.1.1": false, "172.16.0.1": false,
		"100.64.0.1": false, "100.128.0.1": true, "127.0.0.1": false, "169.254.1.1": false,
		"fe80::1": false, "fd00::1": false, "::1": false, "224.0.0.1": false,
	} {
		if isPublic(netip.MustParseAddr(text)) != want {
			t.Errorf("%s: public is %v", text, !want)
		}
	}
	for _, ip := range ownAddresses(Serve) {
		if !isPublic(ip) {
			t.Errorf("%v is not public", ip)
		}
	}
	if own := ownAddresses(Dev); len(own) != 2 {
		t.Errorf("dev has %v, want one address of each family", own)
	}
}

func TestOrLoopback(t *testing.T) {
	t.Parallel()
	one, two := netip.MustParseAddr("192.168.1.2"), netip.MustParseAddr("10.0.0.2")
	for _, c := range []struct {
		own      []netip.Addr
		families [2]int
		want     string
	}{
		{nil, [2]int{}, "127.0.0.1 ::1"},
		{[]netip.Addr{one}, [2]int{1, 0}, "192.168.1.2 ::1"},
		{[]netip.Addr{one, two}, [2]int{2, 0}, "127.0.0.1 ::1"},
	} {
		var texts []string
		for _, ip := range orLoopback(c.own, c.families) {
			texts = append(texts, ip.String())
		}
		if got := strings.Join(texts, " "); got != c.want {
			t.Errorf("%v: %s, want %s", c.own, got, c.want)
		}
	}
}

func TestPlainHTTPAllowed(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"127.0.0.1:7777": true, "127.9.9.9:7777": true, "[::1]:7777": true, "[::ffff:127.0.0.1]:7777": true,
		"0.0.0.0:7777": false, "[::]:7777": false, "192.0.2.1:7777": false, "10.0.0.1:7777": false,
		"192.168.1.1:7777": false, "[fe80::1%eth0]:7777": false, "[fd00::1]:7777": false,
		"[2001:db8::1]:7777": false, "169.254.1.1:7777": false, "[::ffff:0.0.0.0]:7777": false,
	}
	for in, want := range tests {
		addr := netip.MustParseAddrPort(in)
		err := plainHTTPAllowed(addr, false)
		if (err == nil) != want || (err != nil && !errors.Is(err, ErrPlainHTTP)) {
			t.Errorf("plainHTTPAllowed(%s) = %v", in, err)
		}
		if err := plainHTTPAllowed(addr, true); err != nil {
			t.Errorf("plainHTTPAllowed(%s) behind a proxy = %v", in, err)
		}
	}
	if err := plainHTTPAllowed(netip.AddrPort{}, false); !errors.Is(err, ErrPlainHTTP) {
		t.Errorf("PlainHTTPAllowed of no address = %v", err)
	}
}
