package blackbox

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// raw sends one request with that request line and returns the answer, which
// must not be a redirect.
func (f *ferry) raw(method, target, headers, body string) (status int, header http.Header, answer map[string]any) {
	f.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.api, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: relay\r\nContent-Length: %d\r\n%s\r\n%s", method, target, len(body), headers, body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, target, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			f.t.Fatal(err)
		}
		_ = json.Unmarshal(text, &answer) // Some answers are not JSON.
	}
	if resp.Header.Get("Location") != "" {
		f.t.Errorf("%s %s is redirected to %s", method, target, resp.Header.Get("Location"))
	}
	return resp.StatusCode, resp.Header, answer
}

// TestBasePathSlash: a client whose base path ends in a slash asks for every
// route with two slashes, and is served.
func TestBasePathSlash(t *testing.T) {
	t.Parallel()
	f := dev(t)
	const (
		closing = "Connection: close\r\n"
		upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	)
	status, _, answer := f.raw("POST", "//v1/allocate", closing, `{"maxConnections":4}`)
	host := f.allocation(status, 201, answer)
	status, _, answer = f.raw("POST", "//v1/joincode", closing, fmt.Sprintf(`{"allocationId":%q}`, host.AllocationID))
	if status != 201 {
		t.Fatalf("joincode: %d %v", status, answer)
	}
	code := answer["data"].(map[string]any)["joinCode"]
	status, _, answer = f.raw("POST", "//v1/join", closing, fmt.Sprintf(`{"joinCode":%q}`, code))
	if player := f.allocation(status, 200, answer); len(player.HostConnectionData) != 255 {
		t.Errorf("the player got %+v", player)
	}
	for _, test := range []struct {
		method, target, headers string
		want                    int
	}{
		{"GET", "//v1/regions", closing, 200},
		{"GET", "//openapi.yaml", closing, 200},
		{"GET", "//", upgrade, 101},
		{"GET", "//", closing, 426},
		{"GET", "/", upgrade, 101},
		{"OPTIONS", "//v1/allocate", closing + "Origin: https://game.example.org\r\nAccess-Control-Request-Method: POST\r\n", 204},
		{"OPTIONS", "//v1/regions", closing + "Origin: https://game.example.org\r\nAccess-Control-Request-Method: GET\r\n", 204},
		{"GET", "http://relay//v1/regions", closing, 200},
		// One slash, and nothing else.
		{"GET", "///v1/regions", closing, 404},
		{"GET", "///", upgrade, 404},
		{"GET", "//v1//regions", closing, 404},
		{"GET", "//v1/../v1/regions", closing, 404},
		{"GET", "/%2Fv1/regions", closing, 404},
		{"GET", "/%2F", upgrade, 404},
	} {
		status, header, _ := f.raw(test.method, test.target, test.headers, "")
		if status != test.want {
			t.Errorf("%s %s: %d, want %d", test.method, test.target, status, test.want)
		}
		if test.want == 204 && header.Get("Access-Control-Allow-Methods") == "" {
			t.Errorf("%s %s allows no method", test.method, test.target)
		}
	}
}
