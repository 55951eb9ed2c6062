package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	service := newFixture(t, Config{}).service
	tests := map[string]struct {
		cfg  Config
		want string
	}{
		"no service":        {Config{Anonymous: true}, "Service"},
		"no caller":         {Config{Service: service}, "no token"},
		"a negative limit":  {Config{Service: service, Anonymous: true, PlayerPerMinute: -1}, "PlayerPerMinute"},
		"beyond reason":     {Config{Service: service, Anonymous: true, ServerFailedJoinsPerMinute: 1e9 + 1}, "ServerFailedJoinsPerMinute"},
		"an invalid proxy":  {Config{Service: service, Anonymous: true, TrustedProxies: []netip.Prefix{{}}}, "TrustedProxies"},
		"a zero service":    {Config{Service: new(alloc.Service), Anonymous: true}, "Service"},
		"no origin and one": {Config{Service: service, Anonymous: true, AllowOrigins: []string{noOrigin, "https://a.org"}}, "AllowOrigins"},
		"a strange origin":  {Config{Service: service, Anonymous: true, AllowOrigins: []string{"example.org"}}, "AllowOrigins"},
		"an origin's page":  {Config{Service: service, Anonymous: true, AllowOrigins: []string{"https://a.org/x"}}, "AllowOrigins"},
		"a bad token":       {Config{Service: service, Tokens: []Token{{}}}, "tokens[0]: its secret"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if h, err := New(tt.cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tt.want) || h != nil {
				t.Errorf("New = %v, %v, want %v", h, err, tt.want)
			}
		})
	}
}

func TestUnauthorized(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	tests := map[string][]string{
		"none":        nil,
		"empty":       {""},
		"scheme only": {"Bearer"},
		"no token":    {"Bearer "},
		"unknown":     {"Bearer unknown-0123456789abcdef"},
		"prefix":      {"Bearer " + tokenAnna[:len(tokenAnna)-1]},
		"longer":      {"Bearer " + tokenAnna + "x"},
		"upper case":  {"Bearer " + strings.ToUpper(tokenAnna)},
		"basic":       {"Basic " + tokenAnna},
		"bare":        {tokenAnna},
		"two":         {"Bearer " + tokenAnna, "Bearer " + tokenAnna},
	}
	for name, values := range tests {
		for path, call := range x.calls {
			if call.name == callSpec {
				continue
			}
			t.Run(name+" "+path, func(t *testing.T) {
				r := newRequest(call.method, path, "", `{"maxConnections":4}`)
				r.Header["Authorization"] = values
				rec := x.do(r)
				wantProblem(t, rec, 401, 15401)
				want := "Bearer"
				if slices.Contains([]string{"unknown", "prefix", "longer", "upper case"}, name) {
					want = `Bearer error="invalid_token"`
				}
				if got := rec.Header().Get("WWW-Authenticate"); got != want {
					t.Errorf("WWW-Authenticate = %q, want %q", got, want)
				}
			})
		}
	}
	if n := x.relay.Calls; n != 0 {
		t.Errorf("the relay was asked %d times", n)
	}
}

func TestBearerSchemeInAnyCase(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	for _, scheme := range []string{"Bearer", "bearer", "BEARER"} {
		r := newRequest(http.MethodGet, "/v1/regions", "", "")
		r.Header.Set("Authorization", scheme+"  "+tokenAnna)
		wantStatus(t, x.do(r), 200)
	}
}

func TestWrongMethod(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "get"}
	for path, call := range x.calls {
		for _, method := range methods {
			if method == call.method || method == "HEAD" && call.method == "GET" {
				continue
			}
			rec := x.do(newRequest(method, path, tokenAnna, ""))
			wantProblem(t, rec, 405, 15405)
			if got := rec.Header().Get("Allow"); got != allowed[call.method] {
				t.Errorf("%s %s: Allow = %q", method, path, got)
			}
		}
	}
}

// TestHead: HEAD is answered as GET, where that is a call.
func TestHead(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	wantStatus(t, x.do(newRequest(http.MethodHead, "/v1/regions", tokenAnna, "")), 200)
	wantStatus(t, x.do(newRequest(http.MethodHead, "/openapi.yaml", "", "")), 200)
}

// allowed are the Allow headers by the method of a call.
var allowed = map[string]string{"GET": "GET, HEAD, OPTIONS", "POST": "POST, OPTIONS"}

func TestUnknownPath(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v1/allocate/", "/V1/allocate", "/v2/allocate",
		"/v1/../v1/allocate", "/v1/regions%00", "/v1%2Fallocate/x", "//", "///v1/allocate", "//v1//allocate", "//v1/allocate/",
		"//v1/../v1/allocate", "/./v1/allocate", "/%2Fv1/allocate", "/%2fv1/allocate", "//v1%2Fallocate", "//openapi.yaml/",
	} {
		for _, method := range []string{"GET", "POST", "OPTIONS"} {
			wantProblem(t, x.do(newRequest(method, path, tokenAnna, "{}")), 404, 15404)
		}
	}
}

// TestSecondSlash: a path that begins with one slash more than its route, as a
// base path with a trailing slash gives, is that route: no redirect, and the same
// call, pre-flight and errors.
func TestSecondSlash(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	allocate := func() string { return `{"maxConnections":4}` }
	own := func() string { return `{"allocationId":"` + x.allocate(t, tokenAnna) + `"}` }
	leave := func() string {
		return `{"allocationId":"` + x.allocate(t, tokenAnna) + `","connectionData":"` + testTicket + `"}`
	}
	live := func() string { return `{"joinCode":"` + x.code(t, tokenAnna, x.allocate(t, tokenAnna)) + `"}` }
	migration := func() string {
		id := x.allocate(t, tokenAnna)
		code := x.code(t, tokenAnna, id)
		host, err := proto.ParseAllocationID(id)
		if err != nil {
			t.Fatal(err)
		}
		x.relay.Left = host
		return `{"joinCode":"` + code + `","hostConnectionData":"` + testTicket + `"}`
	}
	none := func() string { return "" }
	tests := map[string]struct {
		body func() string
		want int
	}{
		"/v1/allocate": {allocate, 201}, "/v1/joincode": {own, 201}, "/v1/join": {live, 200},
		"/v1/regions": {none, 200}, "/v1/regions/choose": {func() string { return choose }, 200},
		"/openapi.yaml": {none, 200}, "/v1/migrate": {migration, 201}, "/v1/leave": {leave, 204},
	}
	for path, call := range x.calls {
		tt, ok := tests[path]
		if !ok {
			t.Fatalf("no request for %s", path)
		}
		t.Run(path, func(t *testing.T) {
			rec := x.do(newRequest(call.method, "/"+path, tokenAnna, tt.body()))
			wantStatus(t, rec, tt.want)
			if (rec.Body.Len() == 0) != (tt.want == 204) || rec.Header().Get("Location") != "" {
				t.Errorf("body %q, Location %q", rec.Body, rec.Header().Get("Location"))
			}
			rec = x.do(preflightRequest("/"+path, "https://game.example.org", "authorization"))
			wantStatus(t, rec, 204)
			if got := rec.Header().Get("Access-Control-Allow-Methods"); got != call.method {
				t.Errorf("the pre-flight allows %q", got)
			}
			wantProblem(t, x.do(newRequest("DELETE", "/"+path, tokenAnna, "")), 405, 15405)
			if call.name != callSpec {
				wantProblem(t, x.do(newRequest(call.method, "/"+path, "", "")), 401, 15401)
			}
		})
	}
}

func TestSecondSlashCounts(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{PlayerPerMinute: 2})
	wantStatus(t, x.do(newRequest("GET", "//v1/regions", tokenAnna, "")), 200)
	wantStatus(t, x.do(newRequest("GET", "/v1/regions", tokenAnna, "")), 200)
	wantProblem(t, x.do(newRequest("GET", "//v1/regions", tokenAnna, "")), 429, 15429)
}

func TestBodyTooLarge(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	const start, end = `{"maxConnections":4,"x":"`, `"}`
	fill := maxBody - len(start) - len(end)
	fits := start + strings.Repeat("x", fill) + end
	wantStatus(t, x.post("/v1/allocate", tokenAnna, fits), 201)
	tooLong := start + strings.Repeat("x", fill+1) + end
	wantProblem(t, x.post("/v1/allocate", tokenAnna, tooLong), 413, 15413)

	chunked := newRequest(http.MethodPost, "/v1/allocate", tokenAnna, "")
	chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader(tooLong)), -1
	wantProblem(t, x.do(chunked), 413, 15413)
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
func (brokenBody) Close() error             { return nil }

func TestBodyThatBreaksOff(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	r := newRequest(http.MethodPost, "/v1/allocate", tokenAnna, "")
	r.Body, r.ContentLength = brokenBody{}, 20
	wantProblem(t, x.do(r), 400, 15001)
	r.ContentLength = maxBody + 1 // announced too long: refused unread
	wantProblem(t, x.do(r), 413, 15413)
}

func TestMediaTypeIsTolerated(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	for _, mediaType := range []string{"", "application/json; charset=utf-8", "text/plain", "nonsense"} {
		r := newRequest(http.MethodPost, "/v1/allocate", tokenAnna, `{"maxConnections":4}`)
		r.Header.Set("Content-Type", mediaType)
		wantStatus(t, x.do(r), 201)
	}
}

func TestAnonymous(t *testing.T) {
	t.Parallel()
	x := newUnlimitedFixture(t, Config{Anonymous: true, Tokens: testTokens()})
	for _, token := range []string{"", "the.token.of-a-game"} {
		id := x.allocate(t, token)
		code := x.code(t, token, id)
		rec := x.post("/v1/join", token, `{"joinCode":"`+code+`"}`)
		wantStatus(t, rec, 200)
		joiner := sdkAllocation(t, rec, true)
		wantProblem(t, x.post("/v1/joincode", token, `{"allocationId":"`+joiner+`"}`), 404, 15008)
	}
	theirs := x.allocate(t, tokenAnna)
	wantProblem(t, x.post("/v1/joincode", "", `{"allocationId":"`+theirs+`"}`), 404, 15008)
	if a, b := anonymousPrincipal(netip.Prefix{}, nil), anonymousPrincipal(netip.Prefix{}, nil); a.player == b.player {
		t.Error("two anonymous calls are one player")
	}
}

func TestRequestIDIsFresh(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	seen := make(map[string]bool)
	for range 20 {
		r := newRequest(http.MethodGet, "/v1/regions", tokenAnna, "")
		r.Header.Set("X-Request-Id", "mine")
		seen[x.do(r).Header().Get("X-Request-Id")] = true
	}
	if len(seen) != 20 || seen["mine"] {
		t.Errorf("%d ids in 20 requests: %v", len(seen), seen)
	}
}

func TestOnRequest(t *testing.T) {
	t.Parallel()
	type event struct {
		call   string
		status int
	}
	var got []event
	x := newFixture(t, Config{OnRequest: func(r Request) {
		got = append(got, event{r.Call, r.Status})
		if r.Took < 0 || (r.Refusal != "") != (r.Status >= 400) {
			t.Errorf("%+v", r)
		}
	}})
	x.allocate(t, tokenAnna)
	x.post("/v1/join", "", "")
	x.post("/v1/joincode", tokenAnna, "")
	x.do(newRequest("GET", "/v1/regions", tokenAnna, ""))
	x.do(newRequest("GET", "/openapi.yaml", "", ""))
	x.do(newRequest("OPTIONS", "/v1/join", "", ""))
	x.do(newRequest("GET", "/a/path/of/the/callers/choice", "", ""))
	want := []event{
		{"allocate", 201}, {"join", 401}, {"joincode", 400}, {"regions", 200},
		{"openapi", 200}, {"preflight", 204}, {"other", 404},
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

func TestLogHoldsNoSecret(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	x := newFixture(t, Config{Logger: log})
	rec := x.post("/v1/allocate", tokenAnna, `{"maxConnections":4}`)
	a := sdkObject(t, rec.Body.Bytes()).object("data").object("allocation")
	code := x.code(t, tokenAnna, a.text("allocationId"))
	x.post("/v1/join", tokenBert, `{"joinCode":"`+code+`"}`)
	x.post("/v1/join", "a-wrong-canary-token", `{"joinCode":"`+code+`"}`)
	x.relay.Fail(errors.New("the relay broke"))
	wantProblem(t, x.post("/v1/join", tokenBert, `{"joinCode":"`+code+`"}`), 500, api.StatusCode(500))
	if !strings.Contains(out.String(), "the relay broke") {
		t.Error("the internal error is not in the log")
	}
	secrets := []string{
		tokenAnna, tokenBert, "canary", code, a.text("key"), a.text("connectionData"), "192.0.2.1",
	}
	for _, s := range secrets {
		if strings.Contains(out.String(), s) {
			t.Errorf("logged %q", s)
		}
	}
}

func TestReservationIsNotPrinted(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	res, err := x.service.Allocate(t.Context(), alloc.Caller{Player: "p"}, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, v := range []any{res, &res, hostAllocation(res, false), joinerAllocation(res, false)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "value", v)
	}
	key := res.Key[:]
	for _, s := range []string{
		string(key), hex.EncodeToString(key), base64.StdEncoding.EncodeToString(key),
		strings.Trim(fmt.Sprint(key), "[]"), strings.Trim(fmt.Sprintf("%#v", key), "[]byte{}"),
	} {
		if strings.Contains(out.String(), s) {
			t.Errorf("printed %q", s)
		}
	}
}
