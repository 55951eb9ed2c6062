package admin

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDebugPages: profiles and the flight recorder need the operator's access, and each use of
// them is recorded.
func TestDebugPages(t *testing.T) {
	t.Parallel()
	var audit strings.Builder
	flight := new(Flight)
	t.Cleanup(flight.Stop)
	h := New(Config{Flight: flight, Access: Access{Token: sessionToken, Audit: slog.New(slog.NewTextHandler(&audit, nil))}})
	srv := httptest.NewServer(h)
	defer srv.Close()
	call := func(method, path, token string, want int) (body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var b strings.Builder
		if err := resp.Write(&b); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("%s %s: status %d, want %d", method, path, resp.StatusCode, want)
		}
		return b.String()
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/flight-recorder"} {
		call("GET", path, "", http.StatusUnauthorized)
	}
	if audit.Len() > 0 {
		t.Errorf("refused requests are recorded:\n%s", audit.String())
	}
	if body := call("GET", "/debug/pprof/", sessionToken, http.StatusOK); !strings.Contains(body, "goroutine") {
		t.Errorf("index:\n%s", body)
	}
	call("GET", "/debug/pprof/heap", sessionToken, http.StatusOK)
	call("GET", "/debug/pprof/profile?seconds=1", sessionToken, http.StatusOK)
	call("GET", "/debug/flight-recorder", sessionToken, http.StatusConflict)
	call("PUT", "/debug/flight-recorder", sessionToken, http.StatusBadRequest)
	call("PUT", "/debug/flight-recorder?state=maybe", sessionToken, http.StatusBadRequest)
	call("PUT", "/debug/flight-recorder?state=on", sessionToken, http.StatusOK)
	if body := call("GET", "/debug/flight-recorder", sessionToken, http.StatusOK); !strings.Contains(body, "go 1.") {
		t.Errorf("no execution trace: %.100q", body)
	}
	call("PUT", "/debug/flight-recorder?state=off", sessionToken, http.StatusOK)
	call("GET", "/debug/flight-recorder", sessionToken, http.StatusConflict)
	for _, want := range []string{`msg="GET /debug/pprof/heap" status=200 by=token from=127.0.0.1:`,
		`msg="PUT /debug/flight-recorder?state=on" status=200 by=token`} {
		if !strings.Contains(audit.String(), want) {
			t.Errorf("%s is missing in\n%s", want, audit.String())
		}
	}
}

// TestAudit: changes are recorded with their outcome and the session that made them; reading
// and refused requests are not.
func TestAudit(t *testing.T) {
	t.Parallel()
	var audit strings.Builder
	p := newConsolePages(sessionToken)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {})
	p.Handler = New(Config{Console: page, Relay: &RelayConfig{Engine: new(fakeRelay)},
		Access: Access{Token: sessionToken, Sessions: p.sessions, Audit: slog.New(slog.NewTextHandler(&audit, nil))}})
	p.call("POST", "/console/login", `{"token":"wrong-wrong-wrong-wrong"}`)
	p.call("DELETE", "/allocations/"+hostID.String(), "")
	if audit.Len() > 0 {
		t.Errorf("refused requests are recorded:\n%s", audit.String())
	}
	cookie := p.signIn(t)
	p.call("GET", "/stats", "", cookie)
	p.call("DELETE", "/allocations/"+hostID.String(), "", cookie)
	p.call("POST", "/allocations/none/kick?"+strings.Repeat("x", 2000), "", cookie)
	lines := strings.Split(strings.TrimSpace(audit.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), audit.String())
	}
	for i, want := range []string{
		`msg="POST /console/login" status=200 by=sign-in from=127.0.0.1:5000`,
		`msg="DELETE /allocations/` + hostID.String() + `" status=200 by="session `,
		`..." status=400 by="session `,
	} {
		if !strings.Contains(lines[i], want) || strings.Contains(lines[i], sessionToken) || len(lines[i]) > 1000 {
			t.Errorf("line %d: %s\nwant %s", i, lines[i], want)
		}
	}
}
