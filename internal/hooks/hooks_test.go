package hooks

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = []byte("0123456789abcdef")

// program is one of the operator's. It remembers what it was sent.
type program struct {
	*httptest.Server
	mu     sync.Mutex // guards the following fields
	answer http.HandlerFunc
	bodies [][]byte
	heads  []http.Header
}

func newProgram(t *testing.T, answer http.HandlerFunc) *program {
	t.Helper()
	p := &program{answer: answer}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		p.bodies, p.heads = append(p.bodies, body), append(p.heads, r.Header)
		answer := p.answer
		p.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func says(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, text)
	}
}

func (p *program) serve(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *program) heard() int {
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
)

// TestSignature has the vector of the package's documentation.
func TestSignature(t *testing.T) {
	at, body := time.Unix(1767323045, 0), []byte(`{"type":"ended"}`)
	header := Sign(secret, body, at)
	if want := "t=1767323045,v1=90a481d25bdbb424ae9b7ec4d0ee142dc0d065fd947ac92deefe3823df934881"; header != want {
		t.Fatalf("%s, want %s", header, want)
	}
	for name, c := range map[string]struct {
		secret, body []byte
		header       string
		now          time.Time
		want         error
	}{
		"good":           {secret, body, header, at, nil},
		"late":           {secret, body, header, at.Add(5 * time.Minute), nil},
		"too late":       {secret, body, header, at.Add(301 * time.Second), ErrOld},
		"too early":      {secret, body, header, at.Add(-301 * time.Second), ErrOld},
		"another secret": {[]byte("0123456789abcdeF"), body, header, at, ErrSignature},
		"another body":   {secret, append([]byte(" "), body...), header, at, ErrSignature},
		"another time":   {secret, body, strings.Replace(header, "45,", "46,", 1), at, ErrSignature},
		"no time":        {secret, body, strings.TrimPrefix(header, "t=1767323045,"), at, ErrSignature},
		"no sum":         {secret, body, "t=1767323045", at, ErrSignature},
		"half a sum":     {secret, body, header[:len(header)-2], at, ErrSignature},
		"nothing":        {secret, body, "", at, ErrSignature},
		"junk":           {secret, body, "t=x,v1=zz", at, ErrSignature},
	} {
		if err := Verify(c.secret, c.body, c.header, c.now, 5*time.Minute); !errors.Is(err, c.want) || err == nil != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestQuestions(t *testing.T) {
	p := newProgram(t, says(200, `{"allow":true}`))
	a := p.admission(t, nil)
	for _, q := range []alloc.AdmissionRequest{hosting, joining} {
		if err := a.Admit(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`{"call":"allocate","project":"game","environment":"live","player":"anna","kind":"player","region":"eu","maxConnections":4}`,
		`{"call":"join","project":"game","environment":"live","player":"bot","kind":"server","host":"` + joining.Host.String() + `"}`,
	}
	for i, body := range p.bodies {
		if string(body) != want[i] {
			t.Errorf("asked %s\nwant  %s", body, want[i])
		}
		if err := Verify(secret, body, p.heads[i].Get(SignatureHeader), time.Now(), time.Hour); err != nil {
			t.Error(err)
		}
	}
	if a.Stats() != (AdmissionStats{Allowed: 2}) {
		t.Errorf("%+v", a.Stats())
	}
}

// TestAnswers: yes, no, and what is neither, with both choices for that.
func TestAnswers(t *testing.T) {
	long := strings.Repeat("é", maxReason)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		reason string // of a no
		none   bool
	}{
		"yes":            {says(200, `{"allow":true,"reason":"x"}`), "", false},
		"no":             {says(200, `{"allow":false}`), "-", false},
		"no, and why":    {says(200, `{"allow":false,"reason":" banned\n\tuntil Friday "}`), "banned  until Friday", false},
		"no, at length":  {says(200, `{"allow":false,"reason":"`+long+`"}`), long[:maxReason], false},
		"another status": {says(201, `{"allow":true}`), "", true},
		"no content":     {says(204, ``), "", true},
		"forbidden":      {says(403, `{"allow":true}`), "", true},
		"broken":         {says(500, ``), "", true},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/yes", http.StatusTemporaryRedirect)
		}, "", true},
		"empty":              {says(200, ``), "", true},
		"no word of it":      {says(200, `{}`), "", true},
		"null":               {says(200, `null`), "", true},
		"a text":             {says(200, `{"allow":"true"}`), "", true},
		"HTML":               {says(200, `<html>`), "", true},
		"two":                {says(200, `{"allow":true}{"allow":true}`), "", true},
		"large":              {says(200, `{"allow":true,"x":"`+strings.Repeat("x", maxAnswer)+`"}`), "", true},
		"connection is lost": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "", true},
	} {
		for _, open := range []bool{false, true} {
			p := newProgram(t, c.answer)
			a := p.admission(t, func(cfg *AdmissionConfig) { cfg.FailOpen = open })
			err := a.Admit(t.Context(), hosting)
			var denied alloc.DeniedError
			switch {
			case c.none && !open:
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
			if want := uint64(1); c.none && a.Stats().Failed != want {
				t.Errorf("%s: %+v", name, a.Stats())
			}
		}
	}
}

// TestBreaker: a program that fails has a rest, after which one question finds
// out whether it is back.
func TestBreaker(t *testing.T) {
	clock := time.Unix(1000, 0)
	p := newProgram(t, says(500, ""))
	a := p.admission(t, func(cfg *AdmissionConfig) { cfg.Now = func() time.Time { return clock } })
	for range 100 {
		if err := a.Admit(t.Context(), hosting); !errors.Is(err, alloc.ErrAdmissionUnavailable) {
			t.Fatal(err)
		}
	}
	if got := a.Stats(); p.heard() != breakAfter || got != (AdmissionStats{Failed: breakAfter, Skipped: 100 - breakAfter, BreakerOpen: true}) {
		t.Errorf("%d questions, %+v", p.heard(), got)
	}
	clock = clock.Add(breakFor)
	for range 10 {
		_ = a.Admit(t.Context(), hosting)
	}
	if p.heard() != breakAfter+1 {
		t.Errorf("%d questions after a rest, want one", p.heard()-breakAfter)
	}
	p.serve(says(200, `{"allow":true}`))
	clock = clock.Add(breakFor)
	for range 10 {
		if err := a.Admit(t.Context(), hosting); err != nil {
			t.Errorf("it is back: %v", err)
		}
	}
}

// TestConcurrent: no more questions at once than there are places; the others
// wait, and who cannot wait any more does not count against the program.
func TestConcurrent(t *testing.T) {
	const places = 3
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
	a := p.admission(t, func(cfg *AdmissionConfig) { cfg.Concurrent = places })
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := a.Admit(t.Context(), hosting); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.Eventually(t, "all places to be taken", func() bool { mu.Lock(); defer mu.Unlock(); return now == places })
	close(release)
	all.Wait()
	if most != places || p.heard() != 20 {
		t.Errorf("%d at once, %d in all", most, p.heard())
	}
}

// TestTimeout: a program that does not answer holds nobody up for longer.
func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	p := newProgram(t, func(http.ResponseWriter, *http.Request) { <-release })
	a := p.admission(t, func(cfg *AdmissionConfig) { cfg.Timeout = time.Millisecond })
	if err := a.Admit(t.Context(), hosting); !errors.Is(err, alloc.ErrAdmissionUnavailable) {
		t.Error(err)
	}
	close(release)
}

func TestConfigRefused(t *testing.T) {
	for name, err := range map[string]error{
		"plain HTTP":        second(NewAdmission(AdmissionConfig{URL: "http://hooks.example.org/"})),
		"a short secret":    second(NewAdmission(AdmissionConfig{URL: "https://hooks.example.org/", Secret: secret[1:]})),
		"no URL":            second(NewAdmission(AdmissionConfig{})),
		"webhooks unsigned": second(NewWebhooks(WebhookConfig{URL: "https://hooks.example.org/"})),
		"webhooks, no URL":  second(NewWebhooks(WebhookConfig{Secret: secret})),
	} {
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// webhooks returns webhooks that run until stop is called.
func (p *program) webhooks(t *testing.T, change func(*WebhookConfig)) (w *Webhooks, stop func()) {
	t.Helper()
	cfg := WebhookConfig{URL: p.URL, Secret: secret, Backoff: time.Millisecond, Timeout: 20 * time.Second}
	if change != nil {
		change(&cfg)
	}
	w, err := NewWebhooks(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := newContext(t)
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return w, stop
}

// TestEvents: each event is heard, signed, with an id of its own.
func TestEvents(t *testing.T) {
	p := newProgram(t, says(202, ""))
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
		if err := Verify(secret, body, p.heads[i].Get(SignatureHeader), time.Now(), time.Hour); err != nil {
			t.Error(err)
		}
		if e.ID == "" || e.ID != p.heads[i].Get(EventHeader) || e.Time.IsZero() {
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

// TestRetry: an event is sent again under one id, and given up after the last
// attempt.
func TestRetry(t *testing.T) {
	var log bytes.Buffer
	p := newProgram(t, says(503, ""))
	w, stop := p.webhooks(t, func(cfg *WebhookConfig) {
		cfg.Senders, cfg.Attempts = 1, 3
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	w.Send(Event{Type: Bound, Player: "canary"})
	testkit.Eventually(t, "the last attempt", func() bool { return w.Stats().Failed == 1 })
	if s := w.Stats(); p.heard() != 3 || s != (WebhookStats{Retried: 2, Failed: 1}) {
		t.Errorf("%d attempts, %+v", p.heard(), s)
	}
	for _, h := range p.heads {
		if h.Get(EventHeader) != p.heads[0].Get(EventHeader) {
			t.Error("an event that is sent again has another id")
		}
	}
	p.serve(says(200, ""))
	w.Send(Event{Type: Bound})
	testkit.Eventually(t, "the next event", func() bool { return w.Stats().Sent == 1 })
	stop()
	if s := log.String(); !strings.Contains(s, "status 503") || strings.Contains(s, "canary") || strings.Contains(s, string(secret)) {
		t.Errorf("the log: %s", s)
	}
}

// TestFull: nobody waits for a program that does not keep up, and what is lost is
// counted, at the end too.
func TestFull(t *testing.T) {
	release := make(chan struct{})
	p := newProgram(t, func(http.ResponseWriter, *http.Request) { <-release })
	w, stop := p.webhooks(t, func(cfg *WebhookConfig) { cfg.Senders, cfg.Queue = 1, 10 })
	w.Send(Event{Type: Bound})
	testkit.Eventually(t, "one to be under way", func() bool { return p.heard() == 1 })
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

// TestAim: what waits and what comes goes to the next target, under its secret;
// nothing is lost, and what is under way ends where it began.
func TestAim(t *testing.T) {
	release := make(chan struct{})
	first := newProgram(t, func(http.ResponseWriter, *http.Request) { <-release })
	second := newProgram(t, says(200, ""))
	w, _ := first.webhooks(t, func(cfg *WebhookConfig) { cfg.Senders = 1 })
	w.Send(Event{Type: Bound})
	testkit.Eventually(t, "one to be under way", func() bool { return first.heard() == 1 })
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
	if first.heard() != 1 || second.heard() != 2 {
		t.Errorf("the first heard %d, the second %d", first.heard(), second.heard())
	}
	for i, body := range second.bodies {
		if err := Verify(other, body, second.heads[i].Get(SignatureHeader), time.Now(), time.Hour); err != nil {
			t.Error(err)
		}
	}
	for name, cfg := range map[string]WebhookConfig{
		"unsigned": {URL: second.URL}, "no URL": {Secret: other}, "plain HTTP": {URL: "http://hooks.example.org/", Secret: other},
	} {
		if _, err := NewTarget(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
