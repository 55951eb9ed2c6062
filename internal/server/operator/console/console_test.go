package console

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newConsole returns a console of a relay that has received as many datagrams as samples were
// taken.
func newConsole(t *testing.T) (*Console, *atomic.Int64) {
	t.Helper()
	samples := new(atomic.Int64)
	c, err := New(Config{
		Title: "ferry v1", Mode: "serve", Since: time.Now(),
		Stats: func() engine.Stats {
			n := uint64(samples.Add(1))
			return engine.Stats{Received: n, Private: privateapi.Stats{
				Workers:  []privateapi.WorkerStats{{Received: n, CPU: time.Second}, {Transport: "ws"}},
				FastPath: privateapi.FastPathCounts{Datagrams: n},
			}}
		},
		Probe: func(context.Context) error { return nil },
		Nodes: func(context.Context, operator.Load) (operator.Nodes, error) {
			return operator.Nodes{Nodes: []operator.Node{{ID: "n"}}}, nil
		},
		Matches:    func(context.Context) (int, error) { return 1, nil },
		Conditions: func() []Condition { return []Condition{{Name: "readiness", State: "ok", Text: "ready"}} },
		Refusals: func() []timeline.Event {
			return []timeline.Event{{ID: proto.AllocationID{1}, Kind: timeline.BindRefused, Reason: "old nonce", Count: 3}}
		},
		Log: NewLog(slog.DiscardHandler), Audit: NewLog(slog.DiscardHandler),
		Viewer: func(*http.Request) (string, bool) { return "", true },
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c, samples
}

// TestSize: the page is small enough for a slow line.
func TestSize(t *testing.T) {
	c, _ := newConsole(t)
	sum := 0
	for name, f := range c.files {
		if name != "" {
			sum += len(f.gzipped())
		}
	}
	if sum > 150<<10 {
		t.Errorf("the page has %d bytes compressed, want at most 150 KiB", sum)
	}
}

func TestFiles(t *testing.T) {
	c, _ := newConsole(t)
	for path, want := range map[string]string{
		"/console/": "text/html; charset=utf-8", "/console/app.js": "text/javascript; charset=utf-8",
		"/console/app.css": "text/css; charset=utf-8", "/console/licenses.txt": "text/plain; charset=utf-8",
	} {
		r := httptest.NewRequest("GET", path, nil)
		plain := httptest.NewRecorder()
		c.ServeHTTP(plain, r)
		r.Header.Set("Accept-Encoding", "gzip")
		zipped := httptest.NewRecorder()
		c.ServeHTTP(zipped, r)
		unzipped, err := gzip.NewReader(zipped.Body)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(unzipped)
		if err != nil || string(content) != plain.Body.String() || len(content) == 0 {
			t.Errorf("%s: compressed and plain content differ: %v", path, err)
		}
		h := plain.Header()
		if h.Get("Content-Type") != want || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self';") {
			t.Errorf("%s: %v", path, h)
		}
		r.Header.Set("If-None-Match", h.Get("ETag"))
		again := httptest.NewRecorder()
		if c.ServeHTTP(again, r); again.Code != http.StatusNotModified {
			t.Errorf("%s: status %d for an unchanged file", path, again.Code)
		}
	}
	for _, path := range []string{"/console/none", "/console/../console.go", "/console/data/", "/console/data/none"} {
		w := httptest.NewRecorder()
		if c.ServeHTTP(w, httptest.NewRequest("GET", path, nil)); w.Code != http.StatusNotFound {
			t.Errorf("%s: status %d", path, w.Code)
		}
	}
	if page := string(c.files["index.html"].content); strings.Contains(page, "<script>") || strings.Contains(page, "style=") {
		t.Errorf("the page has an inline script or style:\n%s", page)
	}
}

// TestEvents: two browsers get the same samples, of one collector, and their connections end
// with it.
func TestEvents(t *testing.T) {
	c, samples := newConsole(t)
	srv := httptest.NewServer(c)
	defer srv.Close()
	open := func() *bufio.Scanner {
		resp, err := http.Get(srv.URL + "/console/data/events")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
		return bufio.NewScanner(resp.Body)
	}
	early := httptest.NewRecorder()
	c.ServeHTTP(early, httptest.NewRequest("GET", "/console/data/events", nil))
	if early.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d before Run", early.Code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	testkit.Eventually(t, "a sample", func() bool { return samples.Load() > 0 })
	first, second := open(), open()
	next := func(from *bufio.Scanner) (s Sample) {
		t.Helper()
		for from.Scan() {
			if data, ok := strings.CutPrefix(from.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &s); err != nil {
					t.Fatal(err)
				}
				return s
			}
		}
		t.Fatal("no more samples")
		return s
	}
	for want := uint64(1); want <= 3; want++ {
		for _, from := range []*bufio.Scanner{first, second} {
			s := next(from)
			if s.Stats.Received != want || s.Stats.FastPath != want || len(s.WorkerCPU) != 1 || s.RTT.Last < 0 ||
				s.Conditions[0].Name != "readiness" {
				t.Errorf("sample %d: %+v", want, s)
			}
		}
	}
	if n := samples.Load(); n > 60 {
		t.Errorf("%d samples were taken for two browsers", n)
	}
	cancel()
	<-ended
	for first.Scan() { // The rest, until the end.
	}
	if err := first.Err(); err != nil {
		t.Errorf("the connection ends with %v", err)
	}
}

// TestFleet: the console of an API process sums up what its relays tell, and that of a relay has
// itself.
func TestFleet(t *testing.T) {
	c, _ := newConsole(t)
	c.collector.cfg.Relay = "n"
	for second := range 2 {
		if f := c.collector.state(t.Context()); second > 0 && f.Nodes[0].Summary.Load != (operator.Load{}) {
			t.Errorf("after one sample, its rates are not known: %+v", f)
		}
		c.collector.publish(c.collector.sample(t.Context()), nil)
	}
	if f := c.collector.state(t.Context()); len(f.Nodes) != 1 || f.Nodes[0].Summary == nil || f.Nodes[0].Summary.Load.Matches != 1 {
		t.Errorf("a relay: %+v", f)
	}
	cfg := c.cfg
	cfg.Stats, cfg.Relay = nil, ""
	cfg.Nodes = func(context.Context, operator.Load) (operator.Nodes, error) {
		return operator.Nodes{Nodes: []operator.Node{{ID: "host", Role: "api"}, {ID: "a"}, {ID: "b"}, {ID: "silent"}}}, nil
	}
	cfg.Summaries = func(_ context.Context, relays []string) map[string]operator.Summary {
		if len(relays) != 3 {
			t.Errorf("%v are asked", relays)
		}
		one := operator.Summary{Load: operator.Load{BytesOut: 5, P99: 7, Matches: 2, Relays: 1}}
		return map[string]operator.Summary{"a": one, "b": one}
	}
	var api collector
	api.init(cfg)
	if s := api.sample(t.Context()); s.Load != nil {
		t.Errorf("before the relays were asked: %+v", s.Load)
	}
	cfg.Summaries = func(context.Context, []string) map[string]operator.Summary {
		return map[string]operator.Summary{"a": {}}
	}
	silent := collector{}
	silent.init(cfg)
	if silent.askFleet(t.Context()); silent.sample(t.Context()).Load != nil {
		t.Error("no relay has measured anything, and the fleet has a load")
	}
	api.askFleet(t.Context())
	if l := api.sample(t.Context()).Load; l.BytesOut != 10 || l.P99 != 7 || l.Matches != 4 || l.Relays != 2 {
		t.Errorf("%+v", l)
	}
	if f := api.state(t.Context()); len(f.Nodes) != 4 || f.Nodes[1].Summary == nil || f.Nodes[3].Summary != nil {
		t.Errorf("%+v", f)
	}
}

// TestBrowserLimit: more browsers than that are refused, and cost the others nothing.
func TestBrowserLimit(t *testing.T) {
	c, _ := newConsole(t)
	s := &c.collector
	s.running = true
	var last chan []byte
	for range maxBrowsers {
		_, last, _ = s.subscribe("")
	}
	if _, _, err := s.subscribe(""); err != errBrowsers {
		t.Error("one too many")
	}
	for range 2 * browserQueue { // No browser reads: further samples are missed, and nothing blocks.
		s.publish(Sample{}, []byte("{}"))
	}
	if len(last) != browserQueue {
		t.Errorf("%d samples wait", len(last))
	}
	s.unsubscribe(last)
	if _, _, err := s.subscribe(""); err != nil {
		t.Error("refused after one has gone")
	}
	for at := time.Now(); s.last.At.Before(at.Add(2 * keptFor)); {
		s.publish(Sample{At: s.last.At.Add(sampleEvery)}, []byte("{}"))
		if s.last.At.Before(at) {
			s.last.At = at
		}
	}
	if kept, _, _ := s.subscribe(""); len(s.kept) != int(keptFor/sampleEvery)+1 || kept != nil {
		t.Errorf("%d samples are kept", len(s.kept))
	}
}

// TestPersonLimit: one person has so many connections, and takes none of others.
func TestPersonLimit(t *testing.T) {
	c, _ := newConsole(t)
	s := &c.collector
	s.running = true
	for range personBrowsers {
		if _, _, err := s.subscribe("vic"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.subscribe("vic"); err != errPerson {
		t.Errorf("one too many: %v", err)
	}
	if _, _, err := s.subscribe("ann"); err != nil {
		t.Errorf("another person: %v", err)
	}
}

// TestStreamEnds: a connection ends soon after its session does.
func TestStreamEnds(t *testing.T) {
	c, samples := newConsole(t)
	var gone atomic.Bool
	c.collector.cfg.Viewer = func(*http.Request) (string, bool) { return "vic", !gone.Load() }
	srv := httptest.NewServer(c)
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	testkit.Eventually(t, "a sample", func() bool { return samples.Load() > 0 })
	browser := &http.Client{Timeout: 20 * time.Second} // Without an end, reading fails then.
	resp, err := browser.Get(srv.URL + "/console/data/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() {
		t.Fatal("no sample")
	}
	gone.Store(true)
	for lines.Scan() { // The rest, until the end.
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the connection ends with %v", err)
	}
}

// TestRoundTrips: quantiles of the last minute, and what is lost.
func TestRoundTrips(t *testing.T) {
	lost := false
	c := collector{cfg: Config{Probe: func(context.Context) error {
		if lost {
			return errors.New("lost")
		}
		return nil
	}}}
	at, minute := time.Now(), int(roundTrips/sampleEvery)
	pass := func(samples int) *RoundTrip {
		for range samples {
			at = at.Add(sampleEvery)
			c.judge.add(at, &engine.Stats{}, c.roundTrip(t.Context()))
		}
		return c.judge.roundTrip()
	}
	pass(minute)
	lost = true
	if r := pass(5); r.Lost != 5 || r.Last != -1 || r.P50 < 0 || r.P99 < r.P50 {
		t.Errorf("%+v", r)
	}
	if r := pass(2 * minute); r.Lost != minute || r.P50 != 0 {
		t.Errorf("all lost: %+v", r)
	}
}

// TestNobodyLooks: without a browser samples are few. The first browser gets the kept ones and a new one at
// once, and then one each second; so does another process that asks, but without those that follow.
func TestNobodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, samples := newConsole(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		pass := func(d time.Duration, least, most int64) {
			t.Helper()
			before := samples.Load()
			time.Sleep(d)
			synctest.Wait()
			if n := samples.Load() - before; n < least || n > most {
				t.Errorf("%d samples in %v, want %d to %d", n, d, least, most)
			}
		}
		pass(3*sampleEvery, 1, 3) // for the first rates
		pass(time.Minute, 5, 7)
		if c.Summary().Load.Matches != 1 {
			t.Error("no load")
		}
		pass(0, 0, 1)
		before := samples.Load()
		time.Sleep(2 * sampleEvery)
		if synctest.Wait(); samples.Load() > before {
			time.Sleep(2 * sampleEvery) // A sample of less than a second ago would do.
		}
		kept, further, err := c.collector.subscribe("")
		if pass(0, 1, 1); err != nil || len(kept) < 8 || len(further) != 1 {
			t.Errorf("%d kept and %d new samples: %v", len(kept), len(further), err)
		}
		pass(10*sampleEvery, 10, 10)
		c.collector.unsubscribe(further)
		pass(sampleEvery, 0, 1)
		pass(time.Minute, 5, 7)
	})
}

func TestLog(t *testing.T) {
	var next strings.Builder
	l := NewLog(slog.NewTextHandler(&next, &slog.HandlerOptions{Level: slog.LevelInfo}))
	log := slog.New(l).With("relay", "r1").WithGroup("g")
	log.Debug("hidden")
	log.Info("shown", "n", 7, slog.Attr{}, slog.Group("in", "side", true))
	got := l.Lines()
	if len(got) != 1 || got[0].Text != "shown" || got[0].Level != "info" || got[0].Attrs != "relay=r1 g.n=7 g.in.side=true" {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(next.String(), "msg=shown relay=r1 g.n=7 g.in.side=true") || strings.Contains(next.String(), "hidden") {
		t.Errorf("the handler behind it got %q", next.String())
	}
	slog.New(l).Warn("long", "text", strings.Repeat("ü", maxLine))
	if got := l.Lines(); len(got[1].Attrs) > maxLine+10 || !strings.HasSuffix(got[1].Attrs, "ü …") {
		t.Errorf("%d bytes of a long line are kept", len(got[1].Attrs))
	}
	for range keptLines {
		slog.New(l).Info("many")
	}
	if got := l.Lines(); len(got) != keptLines || got[0].Text != "many" || got[keptLines-1].Text != "many" {
		t.Errorf("%d lines", len(got))
	}
}

func TestRefusalsPage(t *testing.T) {
	c, _ := newConsole(t)
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest("GET", "/console/data/refusals", nil))
	var got []operator.WhyEvent
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got) != 1 || got[0].What != "bind refused" || got[0].Count != 3 {
		t.Errorf("%v %s", err, w.Body)
	}
	c.cfg.Refusals = nil
	w = httptest.NewRecorder()
	if c.ServeHTTP(w, httptest.NewRequest("GET", "/console/data/refusals", nil)); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("without a relay: %s", w.Body)
	}
}
