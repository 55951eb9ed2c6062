package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// TestCanaries: the last report of each canary is kept for a day, of a bounded number, and a report that
// is not one is refused.
func TestCanaries(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var c Canaries
	for i := range maxCanaries {
		if err := c.add(operator.CanaryReport{Name: fmt.Sprint(i)}, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.add(operator.CanaryReport{Name: "one too many"}, now); !errors.Is(err, operator.ErrQuery) {
		t.Errorf("one too many: %v", err)
	}
	later := now.Add(canaryFor + time.Second)
	if err := c.add(operator.CanaryReport{Name: "7"}, now.Add(time.Hour)); err != nil || len(c.all(later)) != 1 {
		t.Errorf("%v, %d after a day", err, len(c.all(later)))
	}

	h := New(Config{Canaries: new(Canaries)})
	report := func(text string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/canary", strings.NewReader(text))
		r.Host, r.RemoteAddr = "127.0.0.1", "127.0.0.1:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for text, says := range map[string]string{
		`{"name":`:             "cannot be read",
		`{"name":""}`:          "no name",
		`{"name":"\u001b[1m"}`: "not printable",
		`{"name":"a","transports":[{"matches":1,"failed":2}]}`:    "2 failures in 1 matches",
		`{"name":"` + strings.Repeat("a", maxReport) + `"}`:       "cannot be read",
		`{"name":"` + strings.Repeat("a", maxReportText+1) + `"}`: "longer than",
	} {
		if w := report(text); w.Code != 400 || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%.60s: %d %s", text, w.Code, w.Body)
		}
	}
	if w := report(`{"name":"a","of a later version":1,"transports":[{"transport":"udp","matches":2,"failed":1}]}`); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	var all operator.Canaries
	if err := json.Unmarshal(get(h, "GET", "/canaries").Body.Bytes(), &all); err != nil || len(all.Canaries) != 1 ||
		all.Canaries[0].Transports[0].Matches != 2 || all.Canaries[0].Reported.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
}
