package httpapi

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// description is the API's description as a judge of requests and answers. It
// remembers which answers it has seen.
type description struct {
	doc    *openapi3.T
	router routers.Router
	seen   map[string]bool // "call status"
}

// loadDescription reads the document that the handler serves. Its schemas are
// closed first: an answer may hold nothing that is not described.
func loadDescription(t *testing.T, x *fixture) *description {
	t.Helper()
	rec := x.do(newRequest(http.MethodGet, "/openapi.yaml", "", ""))
	wantStatus(t, rec, http.StatusOK)
	doc, err := openapi3.NewLoader().LoadFromData(rec.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := false
	for name, ref := range doc.Components.Schemas {
		if ref.Value.Type.Is("object") && !strings.HasSuffix(name, "Request") {
			ref.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &closed}
		}
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &description{doc: doc, router: router, seen: make(map[string]bool)}
}

// check sends the request and compares it and its answer with the description. The
// handler must refuse a request that the description forbids, and must not call
// malformed one that it permits.
func (d *description) check(t *testing.T, x *fixture, r *http.Request, body string) *httptest.ResponseRecorder {
	t.Helper()
	route, params, err := d.router.FindRoute(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true,
			SkipSettingDefaults:   true,
		},
	}
	malformed := openapi3filter.ValidateRequest(t.Context(), input)
	r.Body = io.NopCloser(strings.NewReader(body))
	rec := x.do(r)
	if malformed != nil && rec.Code < 400 {
		t.Errorf("%s %s answered %d to an undescribed request: %v", r.Method, r.URL.Path, rec.Code, malformed)
	}
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input,
		Status:                 rec.Code,
		Header:                 rec.Header(),
		Body:                   io.NopCloser(bytes.NewReader(rec.Body.Bytes())),
		Options:                input.Options,
	})
	if err != nil {
		t.Errorf("%s %s: answer %d is not as described: %v\n%.300s", r.Method, r.URL.Path, rec.Code, err, rec.Body)
	}
	d.seen[route.Operation.OperationID+" "+strconv.Itoa(rec.Code)] = true
	return rec
}

func (d *description) post(t *testing.T, x *fixture, path, token, body string) *httptest.ResponseRecorder {
	t.Helper()
	return d.check(t, x, newRequest(http.MethodPost, path, token, body), body)
}

func (d *description) get(t *testing.T, x *fixture, path, token, body string) *httptest.ResponseRecorder {
	t.Helper()
	return d.check(t, x, newRequest(http.MethodGet, path, token, body), body)
}

// described returns all "call status" pairs of the document. The router does
// not route other methods, so those answers are compared on their own.
func (d *description) described() []string {
	var all []string
	for _, item := range d.doc.Paths.Map() {
		for _, op := range item.Operations() {
			for status := range op.Responses.Map() {
				if status != "405" {
					all = append(all, op.OperationID+" "+status)
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestAnswersAreAsDescribed(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{PlayerPerMinute: 30, Authenticate: known})
	d := loadDescription(t, x)
	again := newRequest(http.MethodGet, "/openapi.yaml", "", "")
	again.Header.Set("If-None-Match", d.get(t, x, "/openapi.yaml", "", "").Header().Get("ETag"))
	wantStatus(t, d.check(t, x, again, ""), 304)
	wantStatus(t, d.get(t, x, "/v1/regions", "unavailable", ""), 503)
	wantStatus(t, d.get(t, x, "/v1/regions", "expired", ""), 401)

	rec := d.post(t, x, "/v1/allocate", tokenAnna, `{"maxConnections":4,"region":"far"}`)
	wantStatus(t, rec, 201)
	id := sdkAllocation(t, rec, false)
	rec = d.post(t, x, "/v1/joincode", tokenAnna, `{"allocationId":"`+id+`"}`)
	wantStatus(t, rec, 201)
	code := sdkJoinCode(t, rec)
	bodies := map[string]string{
		"/v1/allocate": `{"maxConnections":4}`,
		"/v1/joincode": `{"allocationId":"` + id + `"}`,
		"/v1/join":     `{"joinCode":"` + code + `"}`,
		"/v1/migrate":  `{"joinCode":"` + code + `","hostConnectionData":"` + testTicket + `"}`,
		"/v1/leave":    `{"allocationId":"` + id + `","connectionData":"` + testTicket + `"}`,
	}
	wantStatus(t, d.post(t, x, "/v1/join", tokenAnna, bodies["/v1/join"]), 200)
	wantStatus(t, d.post(t, x, "/v1/allocate", tokenAnna, `{"maxConnections":4,"region":"moon"}`), 400)
	wantStatus(t, d.post(t, x, "/v1/joincode", tokenBert, bodies["/v1/joincode"]), 404)
	wantStatus(t, d.post(t, x, "/v1/join", tokenAnna, `{"joinCode":"6666666"}`), 404)
	wantStatus(t, d.get(t, x, "/v1/regions", tokenAnna, ""), 200)
	wantStatus(t, d.post(t, x, "/v1/regions/choose", tokenAnna, choose), 200)
	wantStatus(t, d.post(t, x, "/v1/regions/choose", tokenAnna, `{"players":[]}`), 400)
	wantStatus(t, d.post(t, x, "/v1/regions/choose", "", choose), 401)
	wantStatus(t, d.post(t, x, "/v1/regions/choose", tokenAnna, `{"x":"`+strings.Repeat("x", maxChooseBody)+`"}`), 413)
	wantStatus(t, d.post(t, x, "/v1/regions/choose", "unavailable", choose), 503)

	long := `{"x":"` + strings.Repeat("x", maxBody) + `"}`
	wantStatus(t, d.get(t, x, "/v1/regions", tokenAnna, long), 413)
	wantStatus(t, d.get(t, x, "/v1/regions", "", ""), 401)
	for path, body := range bodies {
		wantStatus(t, d.post(t, x, path, "", body), 401)
		wantStatus(t, d.post(t, x, path, tokenAnna, `{}`), 400)
		wantStatus(t, d.post(t, x, path, tokenAnna, long), 413)
		for _, failure := range []error{alloc.ErrFull, alloc.ErrDraining, alloc.ErrUnavailable, errors.New("broken")} {
			x.relay.Fail(failure)
			if rec := d.post(t, x, path, tokenAnna, body); rec.Code < 500 {
				t.Errorf("%s: status %d with %v", path, rec.Code, failure)
			}
		}
		x.relay.Fail(nil)
	}
	host, err := proto.ParseAllocationID(id)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, d.post(t, x, "/v1/migrate", tokenAnna, bodies["/v1/migrate"]), 409)
	x.relay.Left = host
	wantStatus(t, d.post(t, x, "/v1/join", tokenAnna, bodies["/v1/join"]), 409)
	wantStatus(t, d.post(t, x, "/v1/migrate", tokenAnna, strings.Replace(bodies["/v1/migrate"], code, "6666666", 1)), 404)
	wantStatus(t, d.post(t, x, "/v1/migrate", tokenAnna, bodies["/v1/migrate"]), 201)
	wantStatus(t, d.post(t, x, "/v1/leave", tokenBert, bodies["/v1/leave"]), 404)
	wantStatus(t, d.post(t, x, "/v1/leave", tokenAnna, bodies["/v1/leave"]), 204)
	x.relay.Left = proto.AllocationID{} // The host is back.
	for _, path := range []string{"/v1/allocate", "/v1/join"} {
		for _, failure := range []error{alloc.RefusedError{Reason: "banned"}, alloc.ErrProjectInactive, alloc.ErrProjectQuota} {
			x.relay.Fail(failure)
			d.post(t, x, path, tokenAnna, bodies[path])
		}
		x.relay.Fail(nil)
	}
	x.relay.Fail(alloc.ErrProjectInactive)
	wantStatus(t, d.post(t, x, "/v1/migrate", tokenAnna, bodies["/v1/migrate"]), 403)
	x.relay.Fail(nil)
	for path, call := range x.calls {
		for range 30 {
			x.do(newRequest(call.method, path, tokenAnna, ""))
		}
	}
	for path, body := range bodies {
		wantStatus(t, d.post(t, x, path, tokenAnna, body), 429)
	}
	wantStatus(t, d.get(t, x, "/v1/regions", tokenAnna, ""), 429)
	wantStatus(t, d.post(t, x, "/v1/regions/choose", tokenAnna, choose), 429)

	for d.get(t, x, "/openapi.yaml", "", "").Code != 429 {
	}

	if seen, all := slices.Sorted(maps.Keys(d.seen)), d.described(); !slices.Equal(seen, all) {
		t.Errorf("seen      %v\ndescribed %v", seen, all)
	}
}

// TestWrongMethodIsAsDescribed: no operation of the description leads to a 405.
func TestWrongMethodIsAsDescribed(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	d := loadDescription(t, x)
	for path, item := range d.doc.Paths.Map() {
		for method, op := range item.Operations() {
			rec := x.do(newRequest(http.MethodDelete, path, tokenAnna, ""))
			wantStatus(t, rec, 405)
			route := &routers.Route{Spec: d.doc, Path: path, PathItem: item, Method: method, Operation: op}
			err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
				RequestValidationInput: &openapi3filter.RequestValidationInput{
					Request: newRequest(method, path, "", ""), Route: route,
				},
				Status:  rec.Code,
				Header:  rec.Header(),
				Body:    io.NopCloser(rec.Body),
				Options: &openapi3filter.Options{IncludeResponseStatus: true},
			})
			if err != nil {
				t.Errorf("%s %s: %v", method, path, err)
			}
		}
	}
}

func TestDescribedCallsAreServed(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	d := loadDescription(t, x)
	var described, served []string
	for path, item := range d.doc.Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	for path, call := range x.calls {
		served = append(served, call.method+" "+path)
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("described %v\nserved    %v", described, served)
	}
}

func TestSpecIsServedAndSmall(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	rec := x.do(newRequest(http.MethodGet, "/openapi.yaml", "", ""))
	if got := rec.Header().Get("Content-Type"); got != "application/yaml" {
		t.Errorf("Content-Type = %q", got)
	}
	if rec.Body.String() != spec || rec.Body.Len() > maxAnswer {
		t.Errorf("%d bytes, the embedded document has %d", rec.Body.Len(), len(spec))
	}
	compressed := newRequest(http.MethodGet, "/openapi.yaml", "", "")
	compressed.Header.Set("Accept-Encoding", "br, gzip")
	rec = x.do(compressed)
	size := rec.Body.Len()
	unzipped, err := gzip.NewReader(rec.Body)
	if err != nil || rec.Header().Get("Content-Encoding") != "gzip" || size > len(spec)/3 {
		t.Fatalf("%d bytes with %v, %v", size, rec.Header(), err)
	}
	if text, err := io.ReadAll(unzipped); err != nil || string(text) != spec {
		t.Errorf("%d bytes after gzip, %v", len(text), err)
	}
	if got := rec.Header(); got.Get("Cache-Control") != specMaxAge || got.Get("Vary") != "Accept-Encoding" {
		t.Errorf("it cannot be cached: %v", got)
	}
}

// TestSpecIsLimited: one address cannot ask for it without end, and the calls of a player there are
// served.
func TestSpecIsLimited(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{addressPerMinute: 10})
	spec := func() *http.Request { return newRequest(http.MethodGet, "/openapi.yaml", "", "") }
	rec := spend(t, x, spec, 10)
	wantProblem(t, rec, 429, 15429)
	if got := rec.Header(); got.Get("Cache-Control") != "no-store" || got.Get("Retry-After") == "" {
		t.Errorf("the refusal has %v", got)
	}
	other := spec()
	other.RemoteAddr = "198.51.100.7:4000"
	wantStatus(t, x.do(other), 200)
	wantStatus(t, x.do(regionsOf(tokenAnna)()), 200)
}
