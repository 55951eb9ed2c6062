package process

import (
	"bytes"
	"encoding/base64"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/trace"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/otlptest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// tracedOptions are options of a stand-alone relay whose calls are traced.
func tracedOptions(collector string) Options {
	c := local()
	c.TraceURL, c.TraceRatio = collector, 1
	return options(c, Serve)
}

// stop ends an app, which exports its last spans.
func (r running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Run has not ended after a minute")
	}
}

// callWith calls the API with headers, and returns the status.
func callWith(t *testing.T, method, url, body string, header map[string]string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// one returns the only root with that name.
func one(t *testing.T, all []otlptest.Span, name string) otlptest.Span {
	t.Helper()
	roots := otlptest.Roots(all, name)
	if len(roots) != 1 {
		t.Fatalf("%d spans %q without a parent, want 1", len(roots), name)
	}
	return roots[0]
}

// wantTree compares the tree of a span, which is written with one space per level.
func wantTree(t *testing.T, all []otlptest.Span, root, want string) {
	t.Helper()
	if got := otlptest.Tree(all, one(t, all, root)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// wantNoSecrets checks that no exported message has one of the texts.
func wantNoSecrets(t *testing.T, c *otlptest.Collector, secrets ...string) {
	t.Helper()
	text := strings.ToLower(c.Text())
	for _, s := range secrets {
		if s == "" || strings.Contains(text, strings.ToLower(s)) {
			t.Errorf("a message contains %q", s)
		}
	}
}

// TestTracesServe: the calls of a stand-alone relay are trees of spans.
func TestTracesServe(t *testing.T) {
	t.Parallel()
	collector := otlptest.New(t)
	r := start(t, tracedOptions(collector.URL))
	host, code, joiner := r.reserveMatch(t)
	if _, err := r.caller(secret).Join(t.Context(), "QQQQQQ"); problem(err) != http.StatusNotFound {
		t.Errorf("a join with an unknown code: %v", err)
	}
	if status := callWith(t, http.MethodDelete, r.AdminURL()+"/allocations/"+host.ID.String(), "", nil); status != http.StatusOK {
		t.Errorf("DELETE: %d", status)
	}
	r.stop(t)
	all := collector.Spans()
	wantTree(t, all, "POST /v1/allocate", "POST /v1/allocate\n admission\n reserve\n")
	wantTree(t, all, "POST /v1/joincode", "POST /v1/joincode\n describe\n store.CodeOf\n store.Codes\n store.PutCode\n describe\n keep code\n")
	joins := otlptest.Roots(all, "POST /v1/join")
	if len(joins) != 2 {
		t.Fatalf("%d spans of joins, want 2", len(joins))
	}
	if got, want := otlptest.Tree(all, joins[0]), "POST /v1/join\n store.HostOf\n admission\n reserve\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := otlptest.Tree(all, joins[1]), "POST /v1/join\n store.HostOf\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if a := joins[1].Attributes; a["http.response.status_code"] != "404" || joins[1].Failed {
		t.Errorf("a join with an unknown code: %+v", joins[1])
	}
	wantTree(t, all, "DELETE /allocations/{id}", "DELETE /allocations/{id}\n")
	a := one(t, all, "POST /v1/allocate")
	for key, want := range map[string]string{
		"http.request.method": "POST", "http.route": "/v1/allocate", "http.response.status_code": "201",
	} {
		if a.Attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, a.Attributes[key], want)
		}
	}
	if a.Service != "ferry" || a.Instance != (alloc.RelayID{1}).String() || a.Failed || !a.End.After(a.Start) {
		t.Errorf("%+v", a)
	}
	wantNoSecrets(t, collector, secret, code, host.ID.String(), joiner.ID.String(), "QQQQQQ", "127.0.0.1")
}

// TestTracesFleet: the spans of an API process and of the relay that it calls are one tree.
func TestTracesFleet(t *testing.T) {
	t.Parallel()
	k, collector := newFleet(t), otlptest.New(t)
	o := k.relayOptions(1, "eu")
	o.Config.TraceURL = collector.URL
	relay := start(t, o)
	c := k.settings("api", rpc.Request{Role: rpc.RoleAPI})
	c.TraceURL = collector.URL
	front := start(t, options(c, API))
	testkit.Within(t, time.Minute, "the relay", func() bool { return len(front.frontEnd.fleet.Nodes()) == 1 })
	allocation, code := hostIn(t, front, "eu")
	if _, err := front.caller(secret).Join(t.Context(), code); err != nil {
		t.Fatal(err)
	}
	if status := callWith(t, http.MethodDelete, front.AdminURL()+"/allocations/"+allocation.AllocationID, "", nil); status != http.StatusOK {
		t.Errorf("DELETE: %d", status)
	}
	front.stop(t)
	relay.stop(t)
	all := withoutSeals(collector.Spans())
	wantTree(t, all, "POST /v1/allocate", `POST /v1/allocate
 count a request
 admission
 reserve
  placement
  /cluster/v1/reserve-host
   /cluster/v1/reserve-host
    reserve
  store.SetHome
   set a host's home
`)
	wantTree(t, all, "POST /v1/join", `POST /v1/join
 count a request
 store.HostOf
  look up a join code
 admission
 reserve
  store.HomeOf
   look up a host's home
  /cluster/v1/reserve-joiner
   /cluster/v1/reserve-joiner
    reserve
`)
	wantTree(t, all, "DELETE /allocations/{id}", `DELETE /allocations/{id}
 store.HomeOf
  look up a host's home
 /cluster/v1/close
  /cluster/v1/close
`)
	i := slices.IndexFunc(all, func(s otlptest.Span) bool { return s.Name == "placement" })
	if a := all[i].Attributes; a["ferry.region"] != "eu" || a["ferry.relay.id"] != (alloc.RelayID{1}).String() || a["ferry.seats"] != "5" {
		t.Errorf("placement: %v", a)
	}
	instances := make(map[string]int)
	for _, s := range all {
		instances[s.Instance]++
	}
	if len(instances) != 2 || instances[(alloc.RelayID{1}).String()] == 0 {
		t.Errorf("spans by process: %v", instances)
	}
	wantNoSecrets(t, collector, secret, code, allocation.AllocationID, base64.StdEncoding.EncodeToString(allocation.Key), "127.0.0.1")
}

// withoutSeals removes the spans of certificates in the store, which are read only if they
// are not known yet.
func withoutSeals(all []otlptest.Span) []otlptest.Span {
	return slices.DeleteFunc(all, func(s otlptest.Span) bool { return strings.Contains(s.Name, "certificate") })
}

// sampledParent is the header of a caller that samples its call.
const sampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// TestTraceParent: only a backend may decide that its call is traced. A request without a
// valid token has no span, whatever the ratio is.
func TestTraceParent(t *testing.T) {
	t.Parallel()
	collector := otlptest.New(t)
	o := tracedOptions(collector.URL)
	o.Config.TraceRatio = 0
	const backend = "a-secret-of-a-backend"
	o.Config.Tokens = append(o.Config.Tokens, config.Token{Secret: backend, Project: "game", Environment: "test", Kind: "server"})
	r := start(t, o)
	for token, want := range map[string]int{secret: 201, backend: 201, "an-unknown-token-of-nobody": 401} {
		status := callWith(t, http.MethodPost, r.URL()+"/v1/allocate", `{"maxConnections":1}`, map[string]string{
			"Authorization": "Bearer " + token, trace.Header: sampledParent,
		})
		if status != want {
			t.Errorf("%s: %d, want %d", token, status, want)
		}
	}
	unsampled := sampledParent[:len(sampledParent)-1] + "0"
	callWith(t, http.MethodPost, r.URL()+"/v1/allocate", `{"maxConnections":1}`, map[string]string{
		"Authorization": "Bearer " + backend, trace.Header: unsampled,
	})
	r.stop(t)
	all := collector.Spans()
	if len(all) != 3 {
		t.Fatalf("%d spans, want those of the backend's call: %+v", len(all), all)
	}
	root := one(t, all, "POST /v1/allocate")
	if root.Trace != sampledParent[3:35] || root.Parent != sampledParent[36:52] {
		t.Errorf("the span does not belong to the caller's: %+v", root)
	}
}

// TestTracesWithoutToken: a request without a valid token has no span.
func TestTracesWithoutToken(t *testing.T) {
	t.Parallel()
	collector := otlptest.New(t)
	r := start(t, tracedOptions(collector.URL))
	for _, path := range []string{"/v1/allocate", "/v1/join", "/openapi.yaml", "/nowhere"} {
		callWith(t, http.MethodPost, r.URL()+path, `{}`, map[string]string{trace.Header: sampledParent})
	}
	r.stop(t)
	if all := collector.Spans(); len(all) > 0 {
		t.Errorf("%+v", all)
	}
}

// TestCollectorDown: a collector that hangs or is not there delays neither calls nor the
// end of the process for long.
func TestCollectorDown(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	hanging := otlptest.New(t)
	hanging.Answer(func(http.ResponseWriter) bool { <-hang; return true })
	defer close(hang)
	for name, url := range map[string]string{"absent": "http://127.0.0.1:1", "hanging": hanging.URL} {
		t.Run(name, func(t *testing.T) {
			o := tracedOptions(url)
			var log bytes.Buffer
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			r := start(t, o)
			for range 20 {
				began := time.Now()
				if _, err := r.caller(secret).Regions(t.Context()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("a call took %v", took)
				}
			}
			tracer := r.tracer
			began := time.Now()
			r.stop(t)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the end took %v", took)
			}
			if st := tracer.Stats(); st.Failed != 20 || st.Exported+st.Dropped != 0 {
				t.Errorf("%+v", st)
			}
			if n := strings.Count(log.String(), "traces: spans were dropped"); n != 1 {
				t.Errorf("%d warnings, want 1:\n%s", n, &log)
			}
		})
	}
}

// TestTracesOff: by default there is no tracer, no metric and no context value.
func TestTracesOff(t *testing.T) {
	t.Parallel()
	r := start(t, options(local(), Serve))
	if r.tracer != nil || r.api.web.server.BaseContext != nil {
		t.Error("there is a tracer")
	}
	if _, text := fetch(t, r.AdminURL()+"/metrics"); strings.Contains(text, "ferry_trace") {
		t.Error("there are metrics of traces")
	}
}

// TestTraceMetrics: the metrics count spans.
func TestTraceMetrics(t *testing.T) {
	t.Parallel()
	r := start(t, tracedOptions("http://127.0.0.1:1"))
	_, text := fetch(t, r.AdminURL()+"/metrics")
	for _, want := range []string{`ferry_trace_spans_total{result="exported"} 0`, "ferry_trace_queue 0"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestBadTraceSettings: wrong settings are errors before anything is opened.
func TestBadTraceSettings(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"127.0.0.1:4318", "grpc://collector:4317", "http://", "http://user:pw@collector", "http://collector/?key=x",
		"http://collector/#x", "://"} {
		o := tracedOptions(url)
		if err := Check(o.Config, Serve); err == nil || !strings.Contains(err.Error(), "trace_url") || strings.Contains(err.Error(), "pw") {
			t.Errorf("%s: %v", url, err)
		}
	}
	o := tracedOptions("https://collector.example:4318")
	if err := Check(o.Config, Serve); err != nil {
		t.Error(err)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil { // No goroutine was started.
		t.Error(err)
	}
}
