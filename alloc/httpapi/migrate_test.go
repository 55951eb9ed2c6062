package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

// testTicket is 255 bytes in base64. The fake relay opens no tickets.
var testTicket = strings.Repeat("AAAA", alloc.ConnectionDataLen/3)

// problemOfBody returns the problem of an answer.
func problemOfBody(t *testing.T, body []byte) (p api.Problem) {
	t.Helper()
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMigrate: the answers of join and succeed before, during and after a migration.
func TestMigrate(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	id := x.allocate(t, tokenAnna)
	code := x.code(t, tokenAnna, id)
	join, succeed := `{"joinCode":"`+code+`"}`, `{"joinCode":"`+code+`","hostConnectionData":"`+testTicket+`"}`

	rec := x.post("/v1/migrate", tokenBert, succeed)
	wantProblem(t, rec, http.StatusConflict, 15409)
	if got := problemOfBody(t, rec.Body.Bytes()).Detail; got != "the host has not left" {
		t.Errorf("detail %q", got)
	}
	host, err := proto.ParseAllocationID(id)
	if err != nil {
		t.Fatal(err)
	}
	x.relay.leave(host, proto.AllocationID{})
	rec = x.post("/v1/join", tokenBert, join)
	wantProblem(t, rec, http.StatusConflict, 15409)
	if got := rec.Header().Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After %q", got)
	}
	if p := problemOfBody(t, rec.Body.Bytes()); len(p.Details) != 0 {
		t.Errorf("details %v without a candidate", p.Details)
	}
	x.relay.leave(host, proto.AllocationID{7})
	rec = x.post("/v1/join", tokenBert, join)
	wantStatus(t, rec, http.StatusConflict)
	want := api.Detail{Key: api.DetailCandidate, Value: proto.AllocationID{7}.String()}
	if p := problemOfBody(t, rec.Body.Bytes()); len(p.Details) != 1 || p.Details[0] != want {
		t.Errorf("details %v, want %v", p.Details, want)
	}

	rec = x.post("/v1/migrate", tokenBert, succeed)
	wantStatus(t, rec, http.StatusCreated)
	newHost := sdkAllocation(t, rec, false)
	if last := x.relay.hosts[len(x.relay.hosts)-1]; last.MaxConnections != 4 || last.Region != "far" {
		t.Errorf("the new host has %d connections in region %q", last.MaxConnections, last.Region)
	}
	if got := x.code(t, tokenBert, newHost); got != code {
		t.Errorf("the new host has the code %s, not %s", got, code)
	}
	wantStatus(t, x.post("/v1/join", tokenAnna, join), http.StatusOK)
}

// TestMigrateRefusals: bodies that are no claim, and codes that are guessed.
func TestMigrateRefusals(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{FailedJoinsPerMinute: 2})
	for _, body := range []string{
		`{"hostConnectionData":"` + testTicket + `"}`, `{"joinCode":"BCDFGH"}`, `{"joinCode":"BCDFGH","hostConnectionData":"AAAA"}`,
		`{"joinCode":"BCDFGH","hostConnectionData":"` + testTicket + `","hostAllocationId":"x"}`,
		`{"joinCode":"BCDFGH","hostConnectionData":"` + testTicket + `","family":64}`,
	} {
		wantProblem(t, x.post("/v1/migrate", tokenAnna, body), http.StatusBadRequest, api.CodeInvalidRequest)
	}
	wantProblem(t, x.post("/v1/migrate", tokenAnna, `{"joinCode":"aeiou1","hostConnectionData":"`+testTicket+`"}`), http.StatusNotFound, api.CodeJoinCodeNotFound)
	guess := `{"joinCode":"BCDFGH","hostConnectionData":"` + testTicket + `"}`
	for range 2 {
		wantProblem(t, x.post("/v1/migrate", tokenAnna, guess), http.StatusNotFound, api.CodeJoinCodeNotFound)
	}
	wantStatus(t, x.post("/v1/migrate", tokenAnna, guess), http.StatusTooManyRequests)
	wantStatus(t, x.post("/v1/join", tokenAnna, `{"joinCode":"BCDFGH"}`), http.StatusTooManyRequests)
	wantProblem(t, x.post("/v1/migrate", tokenBert, guess), http.StatusNotFound, api.CodeJoinCodeNotFound)
}

// TestMigrateIsOff: without migrations there is no such path.
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
	wantProblem(t, x.post("/v1/migrate", tokenAnna, `{}`), http.StatusNotFound, 15404)
}
