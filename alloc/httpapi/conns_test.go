package httpapi

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestTokenProtectsConnection: a call with a valid token protects its connection, also below
// TLS, from callers without one; an upgraded connection counts no more.
func TestTokenProtectsConnection(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := connlimit.Listen(inner, connlimit.Limits{Total: 4})
	upgraded := make(chan net.Conn, 1)
	stop := serveOn(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
			}
			upgraded <- conn
			return
		}
		x.ServeHTTP(w, r)
	}))
	defer stop()
	call := func(path, token string) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", path, token)
		return conn
	}
	answered := func(conn net.Conn) bool {
		_, err := conn.Read(make([]byte, 1))
		return err == nil
	}
	anna, unknown := call("/v1/regions", tokenAnna), call("/v1/regions", "unknown-0123456789")
	if !answered(anna) || !answered(unknown) {
		t.Fatal("no answer")
	}
	call("/", "")
	taken := <-upgraded // Until it is accepted two connections are open as well.
	defer func() { _ = taken.Close() }()
	testkit.Within(t, time.Minute, "the upgraded connection to leave", func() bool { return l.Len() == 2 })
	for range 4 {
		call("/v1/regions", "unknown-0123456789")
	}
	if _, err := io.Copy(io.Discard, unknown); err == nil {
		t.Error("the connection with an unknown token ended without a reset")
	}
	fmt.Fprintf(anna, "GET /v1/regions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n", tokenAnna)
	if _, err := io.Copy(io.Discard, anna); err != nil {
		t.Errorf("the protected connection: %v", err)
	}
}
