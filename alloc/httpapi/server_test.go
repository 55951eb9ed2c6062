package httpapi

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

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
	t.Parallel()
	s := NewServer(http.NotFoundHandler())
	got := []time.Duration{s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 10 * time.Second, 30 * time.Second}
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
	t.Parallel()
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

func TestClientAgainstServer(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	base := listen(t, x)
	anna := &api.Client{BaseURL: base, Token: tokenAnna}
	bert := &api.Client{BaseURL: base, Token: tokenBert}
	unnamed := &api.Client{BaseURL: base}

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
	_, err = unnamed.Regions(t.Context())
	wantCode(t, err, api.StatusCode(401))
	_, err = anna.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4, Region: strings.Repeat("x", maxBody)})
	wantCode(t, err, api.StatusCode(413))
	x.relay.Fail(alloc.ErrFull)
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
