package blackbox

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestBasePathSlash: a client whose base path ends in a slash asks for a WebSocket, and for every
// route, with two slashes, and is served without a redirect.
func TestBasePathSlash(t *testing.T) {
	t.Parallel()
	f := dev(t)
	const (
		closing = "Connection: close\r\n"
		upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	)
	for _, test := range []struct {
		target, headers string
		want            int
	}{
		{"//v1/regions", closing, 200},
		{"http://relay//v1/regions", closing, 200},
		{"//", upgrade, 101},
		{"//", closing, 426},
		{"/", upgrade, 101},
		// One slash, and nothing else.
		{"///v1/regions", closing, 404},
		{"///", upgrade, 404},
		{"/%2F", upgrade, 404},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.api, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: relay\r\n%s\r\n", test.target, test.headers)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("GET %s: %v", test.target, err)
		}
		if to := resp.Header.Get("Location"); resp.StatusCode != test.want || to != "" {
			t.Errorf("GET %s: %d to %q, want %d", test.target, resp.StatusCode, to, test.want)
		}
		_ = conn.Close()
	}
}
