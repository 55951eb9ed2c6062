package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const maxAnswer = 32 << 10

// FuzzHandler sends arbitrary requests with and without a token. No answer is a 5xx,
// and every error is a problem document.
func FuzzHandler(f *testing.F) {
	paths := []string{"/v1/allocate", "/v1/joincode", "/v1/join", "/v1/regions", "/v1/regions/choose", "/openapi.yaml", "/v1/x"}
	f.Add(uint8(0), "POST", true, "application/json", []byte(`{"maxConnections":4,"region":"far"}`))
	f.Add(uint8(0), "POST", true, "", []byte(`{"maxConnections":1e400,"region":[[[[{}]]]]}`))
	f.Add(uint8(0), "POST", true, "text/plain", []byte(strings.Repeat("[", 10001)))
	f.Add(uint8(1), "POST", true, "application/json", []byte(`{"allocationId":"6f1de3a2-5f34-4a3e-9d4c-0a5f3a1b2c3d"}`))
	f.Add(uint8(2), "POST", true, "application/json", []byte(`{"joinCode":"6789bc"}`))
	f.Add(uint8(2), "POST", true, "application/json", []byte("{\"joinCode\":\"\\ud800\xff\"}"))
	f.Add(uint8(2), "POST", true, "application/json", make([]byte, maxBody+1))
	f.Add(uint8(3), "GET", false, "", []byte(nil))
	f.Add(uint8(4), "GET", false, "", []byte(nil))
	f.Add(uint8(5), "OPTIONS", false, "*/*", []byte(`{}`))
	f.Add(uint8(2), "POST", true, "203.0.113.7, 198.51.100.1", []byte(`{"joinCode":"6789bcdfghjk"}`))
	f.Add(uint8(1), "POST", false, "fe80::1%\x00,::ffff:10.0.0.1, junk", []byte(`{"allocationId":"\u0000"}`))
	f.Add(uint8(0), "POST", true, "Bearer ", []byte(`{"maxConnections":1,"maxConnections":-9223372036854775808}`))
	f.Add(uint8(3), "GET", true, "unity-client-mode,unity-\r\nx", []byte(strings.Repeat(`{"a":`, 3000)))
	x := newFixture(f, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	f.Fuzz(func(t *testing.T, path uint8, method string, known bool, header string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, paths[int(path)%len(paths)], strings.NewReader(string(body)))
		r.Method = method
		for _, name := range []string{"Content-Type", "Origin", "Access-Control-Request-Headers", "X-Forwarded-For"} {
			r.Header.Set(name, header)
		}
		r.Header.Set("Authorization", header)
		if known {
			r.Header.Set("Authorization", "Bearer "+tokenAnna)
		}
		x.clock.Advance(10 * time.Second) // so that no limit is all that is seen
		rec := x.do(r)
		if rec.Code == http.StatusTooManyRequests {
			t.Fatalf("within its limits: %s", rec.Body)
		}
		if rec.Code >= 500 || rec.Code < 200 {
			t.Fatalf("status %d: %s", rec.Code, rec.Body)
		}
		if rec.Body.Len() > maxAnswer {
			t.Fatalf("%d bytes", rec.Body.Len())
		}
		if rec.Code >= 400 {
			sdkProblem(t, rec)
		} else if rec.Header().Get("Content-Type") == typeJSON && !json.Valid(rec.Body.Bytes()) {
			t.Fatalf("not JSON: %s", rec.Body)
		}
	})
}
