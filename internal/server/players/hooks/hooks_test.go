package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = []byte("0123456789abcdef")

type program struct {
	*httptest.Server
	mu      sync.Mutex // guards the following fields
	handler http.HandlerFunc
	bodies  [][]byte
	headers []http.Header
}

func newProgram(t *testing.T, handler http.HandlerFunc) *program {
	t.Helper()
	p := &program{handler: handler}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.bodies, p.headers = append(p.bodies, body), append(p.headers, r.Header)
	handler := p.handler
	p.mu.Unlock()
	handler(w, r)
}

// RoundTrip calls the program without a network, which allows a test to run in a bubble
// of package synctest.
func (p *program) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result(), nil
}

func respond(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, text)
	}
}

func (p *program) setHandler(handler http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = handler
}

func (p *program) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.bodies)
}

func (p *program) admission(t *testing.T, change func(*AdmissionConfig)) *Admission {
	t.Helper()
	cfg := AdmissionConfig{URL: p.URL, Secret: secret, Timeout: 20 * time.Second}
	if change != nil {
		change(&cfg)
	}
	a, err := NewAdmission(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

var (
	hosting = alloc.AdmissionRequest{
		Caller: alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "live"}, Player: "anna"},
		Role:   alloc.RoleHost, MaxConnections: 4, Region: "eu",
	}
	joining = alloc.AdmissionRequest{
		Caller: alloc.Caller{Tenant: hosting.Caller.Tenant, Player: "bot", Server: true},
		Role:   alloc.RoleJoiner, Host: proto.AllocationID{1, 2},
	}
	migrating = alloc.AdmissionRequest{Caller: hosting.Caller, Role: alloc.RoleHost, Host: joining.Host}
)

// TestSignature has the vector of the package's documentation.
func TestSignature(t *testing.T) {
	at, body := time.Unix(1767323045, 0), []byte(`{"type":"ended"}`)
	header := Sign(secret, body, at)
	if want := "t=1767323045,v1=90a481d25bdbb424ae9b7ec4d0ee142dc0d065fd947ac92deefe3823df934881"; header != want {
		t.Fatalf("%s, want %s", header, want)
	}
}

// isSigned reports whether a body has the signature of this header.
func isSigned(secret, body []byte, header string) bool {
	var at int64
	_, err := fmt.Sscanf(header, "t=%d,", &at)
	return err == nil && Sign(secret, body, time.Unix(at, 0)) == header
}

func TestRequests(t *testing.T) {
	p := newProgram(t, respond(200, `{"allow":true}`))
	a := p.admission(t, nil)
	for _, q := range []alloc.AdmissionRequest{hosting, joining, migrating} {
		if err := a.Admit(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`{"call":"allocate","project":"game","environment":"live","player":"anna","kind":"player","region":"eu","maxConnections":4}`,
		`{"call":"join","project":"game","environment":"live","player":"bot","kind":"server","host":"` + joining.Host.String() + `"}`,
		`{"call":"migrate","project":"game","environment":"live","player":"anna","kind":"player","host":"` + joining.Host.String() + `"}`,
	}
	for i, body := range p.bodies {
		if string(body) != want[i] {
			t.Errorf("asked %s\nwant  %s", body, want[i])
		}
		if header := p.headers[i].Get(SignatureHeader); !isSigned(secret, body, header) {
			t.Errorf("the signature is %q", header)
		}
	}
	if a.Stats() != (AdmissionStats{Allowed: 3}) {
		t.Errorf("%+v", a.Stats())
	}
}

// TestResponses checks valid and invalid responses, with both settings of FailOpen.
func TestResponses(t *testing.T) {
	long := strings.Repeat("é", maxReason)
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		reason  string // of a denial
		invalid bool
	}{
		"yes":            {respond(200, `{"allow":true,"reason":"x"}`), "", false},
		"no":             {respond(200, `{"allow":false}`), "-", false},
		"no, and why":    {respond(200, `{"allow":false,"reason":" banned\n\tuntil Friday "}`), "banned  until Friday", false},
		"no, at length":  {respond(200, `{"allow":false,"reason":"`+long+`"}`), long[:maxReason], false},
		"another status": {respond(201, `{"allow":true}`), "", true},
		"no content":     {respond(204, ``), "", true},
		"forbidden":      {respond(403, `{"allow":true}`), "", true},
		"broken":         {respond(500, ``), "", true},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/yes", http.StatusTemporaryRedirect)
		}, "", true},
		"empty":              {respond(200, ``), "", true},
		"no word of it":      {respond(200, `{}`), "", true},
		"null":               {respond(200, `null`), "", true},
		"a text":             {respond(200, `{"allow":"true"}`), "", true},
		"HTML":               {respond(200, `<html>`), "", true},
		"two":                {respond(200, `{"allow":true}{"allow":true}`), "", true},
		"large":              {respond(200, `{"allow":true,"x":"`+strings.Repeat("x", maxResponse)+`"}`), "", true},
		"connection is lost": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "", true},
	} {
		for _, open := range []bool{false, true} {
			p := newProgram(t, c.handler)
			a := p.admission(t, func(cfg *AdmissionConfig) { cfg.FailOpen = open })
			err := a.Admit(t.Context(), hosting)
			var denied alloc.RefusedError
			switch {
			case c.invalid && !open:
				if !errors.Is(err, alloc.ErrAdmissionUnavailable) {
					t.Errorf("%s: %v", name, err)
				}
			case c.reason != "":
				if !errors.As(err, &denied) || denied.Reason != strings.Trim(c.reason, "-") {
					t.Errorf("%s: %v", name, err)
				}
			case err != nil:
				t.Errorf("%s, open %v: %v", name, open, err)
			}
			if want := uint64(1); c.invalid && a.Stats().Failed != want {
				t.Errorf("%s: %+v", name, a.Stats())
			}
		}
	}
}

// TestBreaker checks that the breaker opens after breakerFailures failures, lets one
// request through after breakerTimeout, and closes when that one succeeds.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{handler: respond(500, "")}
		var log testkit.LogBuffer
		lines := func(text string) int { return strings.Count(log.String(), text) }
		a, err := NewAdmission(AdmissionConfig{
			URL: "https://hooks.example.org/", Transport: p, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		for i := range 100 {
			if err := a.Admit(t.Context(), hosting); !errors.Is(err, alloc.ErrAdmissionUnavailable) {
				t.Fatal(err)
			}
			if i < breakerFailures && (lines("no valid response from admission_url") != 1 || lines("does not answer") != i/(breakerFailures-1)) {
				t.Errorf("after %d failures:\n%s", i+1, &log)
			}
		}
		if got := a.Stats(); p.requests() != breakerFailures ||
			got != (AdmissionStats{Failed: breakerFailures, Skipped: 100 - breakerFailures, Resting: 1}) {
			t.Errorf("%d requests, %+v", p.requests(), got)
		}
		time.Sleep(breakerTimeout)
		_ = a.Admit(t.Context(), hosting)
		if p.requests() != breakerFailures {
			t.Error("a request was sent before the end of the timeout")
		}
		time.Sleep(time.Nanosecond)
		for range 10 {
			_ = a.Admit(t.Context(), hosting)
		}
		if p.requests() != breakerFailures+1 {
			t.Errorf("%d requests after the timeout, want 1", p.requests()-breakerFailures)
		}
		p.setHandler(respond(200, `{"allow":true}`))
		time.Sleep(breakerTimeout + 1)
		for range 10 {
			if err := a.Admit(t.Context(), hosting); err != nil {
				t.Errorf("the program has recovered: %v", err)
			}
		}
		if lines("does not answer: players are refused") != 1 || lines("status 500") != 2 || lines("answers again") != 1 {
			t.Errorf("log:\n%s", &log)
		}
	})
}

// TestBreakerIgnoresCallers checks that requests which their callers cancel do not count
// as failures of the program.
func TestBreakerIgnoresCallers(t *testing.T) {
	p := newProgram(t, respond(200, `{"allow":true}`))
	a := p.admission(t, nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * breakerFailures {
		if err := a.Admit(gone, hosting); !errors.Is(err, alloc.ErrAdmissionUnavailable) {
			t.Fatal(err)
		}
	}
	if st := a.Stats(); st.Resting != 0 || st.Skipped != 0 {
		t.Errorf("%+v", st)
	}
	if err := a.Admit(t.Context(), hosting); err != nil {
		t.Error(err)
	}
}

// TestConcurrent checks that no more requests than configured are in progress, and that
// the others wait for their turn.
func TestConcurrent(t *testing.T) {
	const limit = 3
	var mu sync.Mutex
	var now, most int
	release := make(chan struct{})
	p := newProgram(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-release
		mu.Lock()
		now--
		mu.Unlock()
		io.WriteString(w, `{"allow":true}`)
	})
	a := p.admission(t, func(cfg *AdmissionConfig) { cfg.Concurrent = limit })
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := a.Admit(t.Context(), of(fmt.Sprint(i%limit))); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.Eventually(t, "the limit to be reached", func() bool { mu.Lock(); defer mu.Unlock(); return now == limit })
	close(release)
	all.Wait()
	if most != limit || p.requests() != 20 {
		t.Errorf("%d at once, %d in all", most, p.requests())
	}
}

// TestTimeout checks that Admit returns after the timeout if the program does not respond.
func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	p := newProgram(t, func(http.ResponseWriter, *http.Request) { <-release })
	a := p.admission(t, func(cfg *AdmissionConfig) { cfg.Timeout = time.Millisecond })
	if err := a.Admit(t.Context(), hosting); !errors.Is(err, alloc.ErrAdmissionUnavailable) {
		t.Error(err)
	}
	close(release)
}

func TestInvalidConfig(t *testing.T) {
	for name, err := range map[string]error{
		"plain HTTP":        errorOf(NewAdmission(AdmissionConfig{URL: "http://203.0.113.7/"})),
		"a short secret":    errorOf(NewAdmission(AdmissionConfig{URL: "https://hooks.example.org/", Secret: secret[1:]})),
		"no URL":            errorOf(NewAdmission(AdmissionConfig{})),
		"webhooks unsigned": errorOf(NewTarget(WebhookConfig{URL: "https://hooks.example.org/"})),
		"webhooks, no URL":  errorOf(NewTarget(WebhookConfig{Secret: secret})),
		"webhooks, plain":   errorOf(NewTarget(WebhookConfig{URL: "http://203.0.113.7/", Secret: secret})),
	} {
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }

func (p *program) webhooks(t *testing.T, change func(*WebhookConfig)) (w *Webhooks, stop func()) {
	t.Helper()
	cfg := WebhookConfig{URL: p.URL, Secret: secret, Backoff: time.Millisecond, Timeout: 20 * time.Second}
	if change != nil {
		change(&cfg)
	}
	target, err := NewTarget(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w = NewWebhooks(cfg)
	w.SetTarget(target)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return w, stop
}

// TestEvents checks that each event arrives, signed and with its own id.
func TestEvents(t *testing.T) {
	p := newProgram(t, respond(202, ""))
	w, _ := p.webhooks(t, nil)
	at := time.Unix(1767323045, 0).UTC()
	w.Send(Event{Type: Ended, Allocation: "x", Time: at, Reason: "expired"})
	w.Send(EventOf(alloc.ReservationEvent{Request: hosting, ID: proto.AllocationID{9}}))
	w.Send(EventOf(alloc.ReservationEvent{Request: joining, ID: proto.AllocationID{8}}))
	testkit.Eventually(t, "three events", func() bool { return w.Stats().Sent == 3 })
	ids := map[string]bool{}
	byType := map[Type]Event{}
	for i, body := range p.bodies {
		var e Event
		if err := json.Unmarshal(body, &e); err != nil {
			t.Fatal(err)
		}
		if header := p.headers[i].Get(SignatureHeader); !isSigned(secret, body, header) {
			t.Errorf("the signature is %q", header)
		}
		if e.ID == "" || e.ID != p.headers[i].Get(EventHeader) || e.Time.IsZero() {
			t.Errorf("%+v", e)
		}
		ids[e.ID] = true
		byType[e.Type+Type(e.Role)] = e
	}
	if len(ids) != 3 {
		t.Errorf("%d ids", len(ids))
	}
	if e := byType[Ended]; e.Reason != "expired" || !e.Time.Equal(at) || e.Player != "" {
		t.Errorf("%+v", e)
	}
	if e := byType["allocatedhost"]; e.Player != "anna" || e.Project != "game" || e.Region != "eu" || e.MaxConnections != 4 || e.Peer != "" {
		t.Errorf("%+v", e)
	}
	if e := byType["allocatedjoiner"]; e.Player != "bot" || e.Kind != "server" || e.Peer != joining.Host.String() {
		t.Errorf("%+v", e)
	}
}

// TestRetry checks that an event is sent again with the same id, and dropped after the
// last attempt.
func TestRetry(t *testing.T) {
	var log bytes.Buffer
	p := newProgram(t, respond(503, ""))
	w, stop := p.webhooks(t, func(cfg *WebhookConfig) {
		cfg.Senders, cfg.Attempts = 1, 3
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	w.Send(Event{Type: Bound, Player: "canary"})
	testkit.Eventually(t, "the last attempt", func() bool { return w.Stats().Failed == 1 })
	if s := w.Stats(); p.requests() != 3 || s != (WebhookStats{Retried: 2, Failed: 1}) {
		t.Errorf("%d attempts, %+v", p.requests(), s)
	}
	for _, h := range p.headers {
		if h.Get(EventHeader) != p.headers[0].Get(EventHeader) {
			t.Error("an event that is sent again has another id")
		}
	}
	p.setHandler(respond(200, ""))
	w.Send(Event{Type: Bound})
	testkit.Eventually(t, "the next event", func() bool { return w.Stats().Sent == 1 })
	stop()
	if s := log.String(); !strings.Contains(s, "status 503") || strings.Contains(s, "canary") || strings.Contains(s, string(secret)) {
		t.Errorf("the log: %s", s)
	}
}

// TestFewLines: many events that are lost are one line a minute, and one at the end.
func TestFewLines(t *testing.T) {
	var log bytes.Buffer
	p := newProgram(t, respond(503, ""))
	w, stop := p.webhooks(t, func(cfg *WebhookConfig) {
		cfg.Senders, cfg.Attempts = 1, 1
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 50 {
		w.Send(Event{Type: Bound})
	}
	testkit.Eventually(t, "all have failed", func() bool { return w.Stats().Failed == 50 })
	release := make(chan struct{})
	defer close(release)
	p.setHandler(func(http.ResponseWriter, *http.Request) { <-release })
	w.Send(Event{Type: Bound})
	testkit.Eventually(t, "one event to be in progress", func() bool { return p.requests() == 51 })
	w.Send(Event{Type: Bound})
	stop()
	if s := log.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "after all attempts") ||
		!strings.Contains(s, `msg="webhooks: the process ends before events were sent" dropped=2`) {
		t.Errorf("the log: %s", s)
	}
}

// TestFull checks that Send does not block when the queue is full, and that all lost
// events are counted, including those of the end.
func TestFull(t *testing.T) {
	release := make(chan struct{})
	p := newProgram(t, func(http.ResponseWriter, *http.Request) { <-release })
	w, stop := p.webhooks(t, func(cfg *WebhookConfig) { cfg.Senders, cfg.Queue = 1, 10 })
	w.Send(Event{Type: Bound})
	testkit.Eventually(t, "one event to be in progress", func() bool { return p.requests() == 1 })
	for range 100 {
		w.Send(Event{Type: Bound})
	}
	if s := w.Stats(); s.Full != 90 || s.Waiting != 10 {
		t.Errorf("%+v", s)
	}
	close(release)
	stop()
	if s := w.Stats(); s.Sent+s.Failed != 11 || s.Waiting != 0 {
		t.Errorf("at the end %+v, want 11 sent or failed", s)
	}
}

// TestSetTarget checks that queued and new events go to the new target with its secret,
// and that an attempt in progress completes at the old one.
func TestSetTarget(t *testing.T) {
	release := make(chan struct{})
	first := newProgram(t, func(http.ResponseWriter, *http.Request) { <-release })
	second := newProgram(t, respond(200, ""))
	w, _ := first.webhooks(t, func(cfg *WebhookConfig) { cfg.Senders = 1 })
	w.Send(Event{Type: Bound})
	testkit.Eventually(t, "one event to be in progress", func() bool { return first.requests() == 1 })
	w.Send(Event{Type: Joined})
	other := []byte("another secret, just as long")
	target, err := NewTarget(WebhookConfig{URL: second.URL, Secret: other})
	if err != nil {
		t.Fatal(err)
	}
	w.SetTarget(target)
	w.Send(Event{Type: Left})
	close(release)
	testkit.Eventually(t, "all three", func() bool { return w.Stats().Sent == 3 })
	if first.requests() != 1 || second.requests() != 2 {
		t.Errorf("the first got %d, the second %d", first.requests(), second.requests())
	}
	for i, body := range second.bodies {
		if header := second.headers[i].Get(SignatureHeader); !isSigned(other, body, header) {
			t.Errorf("the signature is %q", header)
		}
	}
}

// FuzzResponse parses any response: the result is a response or an error, and a reason
// that can be displayed.
func FuzzResponse(f *testing.F) {
	for _, seed := range []string{`{"allow":true}`, `{"allow":false,"reason":"\u0000\ud800 x"}`, `null`, `[]`, `{"allow":null}`,
		"{\"allow\":false,\"reason\":\"\xff\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := parseResponse(body)
		if err != nil && v != (response{}) {
			t.Fatalf("%+v with %v", v, err)
		}
		reason := clean(v.Reason)
		if len(reason) > maxReason || clean(reason) != reason {
			t.Fatalf("reason %q", reason)
		}
	})
}
