package httpapi

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

// listen serves the handler as ferry does and returns its base URL.
func listen(t *testing.T, x *fixture) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(x)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

func TestServerLimits(t *testing.T) {
	s := NewServer(http.NotFoundHandler())
	got := []time.Duration{s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, time.Minute}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("time-out %d is %v, want %v", i, got[i], want[i])
		}
	}
	if s.MaxHeaderBytes != 8<<10 {
		t.Errorf("MaxHeaderBytes = %d", s.MaxHeaderBytes)
	}
}

func TestServerRefusesLongHeaders(t *testing.T) {
	base := listen(t, newFixture(t, Config{}))
	req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/v1/regions", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 32<<10))
	// The server closes the connection half a second after its answer, while a slow
	// caller is still sending.
	var res *http.Response
	for range 10 {
		if res, err = http.DefaultClient.Do(req); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", res.StatusCode)
	}
}

// TestClientAgainstServer has the package's own client go through a match and
// its failures over a real connection.
func TestClientAgainstServer(t *testing.T) {
	x := newFixture(t, Config{})
	base := listen(t, x)
	anna := &api.Client{BaseURL: base, Token: tokenAnna}
	bert := &api.Client{BaseURL: base, Token: tokenBert}
	nobody := &api.Client{BaseURL: base}

	host, err := anna.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4, Region: "far"})
	if err != nil || host.Region != "far" || host.RelayServer != (api.RelayServer{IPv4: "192.0.2.9", Port: 7777}) {
		t.Fatalf("Allocate = %+v, %v", host, err)
	}
	code, err := anna.JoinCode(t.Context(), host.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := bert.Join(t.Context(), strings.ToLower(code))
	if err != nil || len(joiner.HostConnectionData) != 255 {
		t.Fatalf("Join = %+v, %v", joiner, err)
	}
	regions, err := bert.Regions(t.Context())
	if err != nil || len(regions) != 2 {
		t.Fatalf("Regions = %v, %v", regions, err)
	}

	_, err = bert.JoinCode(t.Context(), host.AllocationID)
	wantCode(t, err, api.CodeAllocationNotFound)
	_, err = nobody.Regions(t.Context())
	wantCode(t, err, api.StatusCode(401))
	_, err = anna.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4, Region: strings.Repeat("x", maxBody)})
	wantCode(t, err, api.StatusCode(413))
	x.relay.failWith(alloc.ErrFull)
	_, err = anna.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
	if p := wantCode(t, err, api.CodeNoSuitableRelay); p.RetryAfter != retryFull {
		t.Errorf("RetryAfter = %v", p.RetryAfter)
	}
}

func wantCode(t *testing.T, err error, code int) *api.Problem {
	t.Helper()
	p, ok := errors.AsType[*api.Problem](err)
	if !ok || p.Code != code {
		t.Fatalf("error = %v, want code %d", err, code)
	}
	return p
}

func TestClientAddress(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48")}
	tests := []struct {
		name, remote string
		forwarded    []string
		want         string
		own          bool
	}{
		{"direct", "192.0.2.1:5", nil, "192.0.2.1/32", true},
		{"mapped", "[::ffff:192.0.2.1]:5", nil, "192.0.2.1/32", true},
		{"IPv6 by its /56", "[2001:db8:1:2:3::4]:5", nil, "2001:db8:1::/56", true},
		{"zone", "[fe80::1%eth0]:5", nil, "fe80::/56", true},
		{"a forged header", "192.0.2.1:5", []string{"198.51.100.1"}, "192.0.2.1/32", true},
		{"a proxy", "10.1.1.1:5", []string{"198.51.100.1"}, "198.51.100.1/32", true},
		{"an IPv6 proxy", "[2001:db8:ff::1]:5", []string{"198.51.100.1"}, "198.51.100.1/32", true},
		{"a forged header behind a proxy", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1"}, "198.51.100.1/32", true},
		{"two proxies", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1, 10.2.2.2"}, "198.51.100.1/32", true},
		{"two header lines", "10.1.1.1:5", []string{"198.51.100.1", "10.2.2.2"}, "198.51.100.1/32", true},
		{"proxies only", "10.1.1.1:5", []string{"10.3.3.3"}, "10.3.3.3/32", false},
		{"junk", "10.1.1.1:5", []string{"198.51.100.1, junk"}, "10.1.1.1/32", false},
		{"empty", "10.1.1.1:5", []string{""}, "10.1.1.1/32", false},
		{"no header", "10.1.1.1:5", nil, "10.1.1.1/32", false},
		{"no address", "@", []string{"198.51.100.1"}, "invalid Prefix", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = tt.remote
			r.Header["X-Forwarded-For"] = tt.forwarded
			if got, own := clientAddress(r, proxies); got.String() != tt.want || own != tt.own {
				t.Errorf("clientAddress = %v, %v, want %s, %v", got, own, tt.want, tt.own)
			}
		})
	}
}
