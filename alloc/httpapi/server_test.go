package httpapi

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
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
