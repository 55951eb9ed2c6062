package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

// testTicket is 255 bytes in base64. The fake relay opens no tickets.
var testTicket = strings.Repeat("AQAA", proto.MaxConnectionData/3)

func problemOfBody(t *testing.T, body []byte) (p api.Problem) {
	t.Helper()
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	id := x.allocate(t, tokenAnna)
	code := x.code(t, tokenAnna, id)
	join, leave := `{"joinCode":"`+code+`"}`, `{"allocationId":"`+id+`","connectionData":"`+testTicket+`"}`
	migrate := `{"joinCode":"` + code + `","hostConnectionData":"` + testTicket + `"}`

	rec := x.post("/v1/migrate", tokenBert, migrate)
	wantProblem(t, rec, http.StatusConflict, 15409)
	want := api.Detail{Key: api.DetailHost, Value: id}
	if p := problemOfBody(t, rec.Body.Bytes()); len(p.Details) != 1 || p.Details[0] != want || rec.Header().Get("Retry-After") != "" {
		t.Errorf("with a live host: %+v, Retry-After %q", p, rec.Header().Get("Retry-After"))
	}
	for range 2 {
		rec = x.post("/v1/leave", tokenAnna, leave)
		wantStatus(t, rec, http.StatusNoContent)
		if rec.Body.Len() != 0 || rec.Header().Get(headerRequestID) == "" {
			t.Errorf("leave is answered with %q, %v", rec.Body, rec.Header())
		}
	}
	rec = x.post("/v1/join", tokenBert, join)
	wantProblem(t, rec, http.StatusConflict, 15409)
	if p := problemOfBody(t, rec.Body.Bytes()); p.Detail != "the host has left" || len(p.Details) != 0 ||
		rec.Header().Get("Retry-After") != "1" {
		t.Errorf("a join without a host: %+v, Retry-After %q", p, rec.Header().Get("Retry-After"))
	}
	rec = x.post("/v1/migrate", tokenBert, migrate)
	wantStatus(t, rec, http.StatusCreated)
	sdkAllocation(t, rec, false)
	if got := x.relay.Migrations[len(x.relay.Migrations)-1].Code; got != code {
		t.Errorf("the relay is asked for the code %q", got)
	}
	x.relay.Fail(alloc.RefusedError{Err: alloc.ErrMigration, Reason: "the host was heard 2.0 s ago", RetryAfter: 4100 * time.Millisecond})
	rec = x.post("/v1/migrate", tokenBert, migrate)
	wantProblem(t, rec, http.StatusConflict, 15409)
	if p := problemOfBody(t, rec.Body.Bytes()); p.Detail != "the host was heard 2.0 s ago" || rec.Header().Get("Retry-After") != "5" {
		t.Errorf("with a host that may have left: %+v, Retry-After %q", p, rec.Header().Get("Retry-After"))
	}
}

// TestLeaveRefusals: which callers may say that a host leaves, and the answers to errors.
func TestLeaveRefusals(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	id := x.allocate(t, tokenAnna)
	leave, bare := `{"allocationId":"`+id+`","connectionData":"`+testTicket+`"}`, `{"allocationId":"`+id+`"}`
	for _, body := range []string{`{}`, `{"allocationId":"x"}`, `[]`, `{"allocationId":1}`, bare,
		`{"allocationId":"` + id + `","connectionData":"AAAA"}`} {
		wantProblem(t, x.post("/v1/leave", tokenAnna, body), http.StatusBadRequest, api.CodeInvalidRequest)
	}
	wantStatus(t, x.post("/v1/leave", "", leave), http.StatusUnauthorized)
	for _, token := range []string{tokenBert, tokenStaging, tokenOther} {
		wantProblem(t, x.post("/v1/leave", token, leave), http.StatusNotFound, api.CodeAllocationNotFound)
	}
	wantProblem(t, x.post("/v1/leave", tokenAnna, strings.Replace(leave, id, proto.AllocationID{1}.String(), 1)), http.StatusNotFound,
		api.CodeAllocationNotFound)
	x.relay.Fail(alloc.ErrUnavailable)
	wantStatus(t, x.post("/v1/leave", tokenAnna, leave), http.StatusServiceUnavailable)
	x.relay.Fail(errors.New("unknown"))
	wantStatus(t, x.post("/v1/leave", tokenAnna, leave), http.StatusInternalServerError)
	x.relay.Fail(nil)
	wantStatus(t, x.post("/v1/leave", tokenServer, bare), http.StatusNoContent)
}

func TestMigrateRefusals(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{failedJoinsPerMinute: 2})
	for _, body := range []string{
		`{"hostConnectionData":"` + testTicket + `"}`, `{"joinCode":"BCDFGH"}`, `{"joinCode":"BCDFGH","hostConnectionData":"AAAA"}`,
		`{"joinCode":"BCDFGH","hostConnectionData":"` + testTicket + `","family":64}`,
		`{"joinCode":"BCDFGH","hostConnectionData":"` + testTicket + `","playerAddress":"198.51.100.1"}`,
	} {
		wantProblem(t, x.post("/v1/migrate", tokenAnna, body), http.StatusBadRequest, api.CodeInvalidRequest)
	}
	wantProblem(t, x.post("/v1/migrate", tokenAnna, `{"joinCode":"aeiou1","hostConnectionData":"`+testTicket+`"}`), http.StatusNotFound,
		api.CodeJoinCodeNotFound)
	guess := `{"joinCode":"BCDFGH","hostConnectionData":"` + testTicket + `"}`
	for range 2 {
		wantProblem(t, x.post("/v1/migrate", tokenAnna, guess), http.StatusNotFound, api.CodeJoinCodeNotFound)
	}
	wantStatus(t, x.post("/v1/migrate", tokenAnna, guess), http.StatusTooManyRequests)
	wantStatus(t, x.post("/v1/join", tokenAnna, `{"joinCode":"BCDFGH"}`), http.StatusTooManyRequests)
	wantProblem(t, x.post("/v1/migrate", tokenBert, guess), http.StatusNotFound, api.CodeJoinCodeNotFound)
}

// TestMigrateIsOff: without migrations the answer names the setting.
func TestMigrateIsOff(t *testing.T) {
	t.Parallel()
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: newFakeRelay(), Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "local"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(Config{Service: service, Tokens: testTokens()})
	if err != nil {
		t.Fatal(err)
	}
	x := &fixture{Handler: h}
	for _, path := range []string{"/v1/migrate", "/v1/leave"} {
		rec := x.post(path, tokenAnna, `{}`)
		wantProblem(t, rec, http.StatusNotFound, 15404)
		if !strings.Contains(rec.Body.String(), "host_migration") {
			t.Errorf("%s: %s", path, rec.Body)
		}
	}
}
