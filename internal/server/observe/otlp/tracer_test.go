package otlp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/trace"
	"github.com/ferryrelay/ferry/internal/server/observe/otlp"
	"github.com/ferryrelay/ferry/internal/test/otlptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTracer(t *testing.T, cfg otlp.Config) *otlp.Tracer {
	t.Helper()
	tracer, err := otlp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// run runs a tracer until the function that it returns is called.
func run(t *testing.T, tracer *otlp.Tracer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tracer.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Run has not ended after a minute")
		}
	}
}

// record records n calls of one span each.
func record(tracer *otlp.Tracer, n int) {
	for range n {
		tracer.Start("call", time.Now(), "").End(nil)
	}
}

// TestErrors: a span has the kind of its error, and not its text.
func TestErrors(t *testing.T) {
	collector := otlptest.New(t)
	tracer := newTracer(t, otlp.Config{URL: collector.URL, Ratio: 1})
	stop := run(t, tracer)
	cases := []struct {
		err    error
		kind   string
		failed bool
	}{
		{nil, "", false},
		{fmt.Errorf("SECRET: %w", alloc.ErrCodeNotFound), "code_not_found", false},
		{fmt.Errorf("SECRET: %w", alloc.ErrFull), "full", true},
		{fmt.Errorf("SECRET: %w", alloc.ErrUnavailable), "unavailable", true},
		{fmt.Errorf("SECRET: %w", alloc.ErrStoreUnavailable), "store_unavailable", true},
		{fmt.Errorf("%w: %w", alloc.ErrStoreUnavailable, context.DeadlineExceeded), "timeout", true},
		{alloc.DeniedError{Reason: "SECRET"}, "denied", false},
		{trace.Status(503), "503", true},
		{errors.New("SECRET"), "_OTHER", true},
	}
	for i, c := range cases {
		tracer.Start(fmt.Sprint(i), time.Now(), "").End(c.err)
	}
	stop()
	all := collector.Spans()
	if len(all) != len(cases) {
		t.Fatalf("%d spans, want %d", len(all), len(cases))
	}
	for i, c := range cases {
		if s := all[i]; s.Name != fmt.Sprint(i) || s.Attributes["error.type"] != c.kind || s.Failed != c.failed {
			t.Errorf("%v: %+v", c.err, s)
		}
	}
	if strings.Contains(collector.Text(), "SECRET") {
		t.Error("a message contains the text of an error")
	}
}

// TestParents: children and callers in other processes are one trace, and spans end after
// their parents if need be.
func TestParents(t *testing.T) {
	collector := otlptest.New(t)
	tracer := newTracer(t, otlp.Config{URL: collector.URL + "/", Ratio: 1})
	stop := run(t, tracer)
	root := tracer.Start("call", time.Now(), "")
	child := root.Child("client", trace.Client)
	far := tracer.Start("server", time.Now(), child.Header())
	root.End(nil)
	child.End(nil)
	far.End(nil)
	tracer.Start("damaged", time.Now(), "00-SECRET").End(nil)
	stop()
	all := collector.Spans()
	if got, want := otlptest.Tree(all, otlptest.Roots(all, "call")[0]), "call\n client\n  server\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if len(otlptest.Roots(all, "damaged")) != 1 {
		t.Error("a call with a damaged header is no call without a parent")
	}
}

// TestRatio: the ratio is that of calls without a parent.
func TestRatio(t *testing.T) {
	const calls = 10_000
	tracer := newTracer(t, otlp.Config{URL: "http://127.0.0.1:1", Ratio: 0.25})
	sampled := 0
	for range calls {
		if r := tracer.Start("call", time.Now(), ""); r != nil {
			sampled++
		}
	}
	if share := float64(sampled) / calls; math.Abs(share-0.25) > 0.05 {
		t.Errorf("%v of the calls are sampled", share)
	}
	none := newTracer(t, otlp.Config{URL: "http://127.0.0.1:1"})
	if none.Start("call", time.Now(), "") != nil {
		t.Error("ratio 0: a call is sampled")
	}
}

// TestQueue: spans that do not fit into the queue are dropped and counted, without a wait,
// and with one warning.
func TestQueue(t *testing.T) {
	collector := otlptest.New(t)
	var log bytes.Buffer
	tracer := newTracer(t, otlp.Config{URL: collector.URL, Ratio: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	record(tracer, 2148)
	if st := tracer.Stats(); st.Queued != 2048 || st.Dropped != 100 {
		t.Errorf("%+v", st)
	}
	stop := run(t, tracer)
	stop()
	record(tracer, 1) // Nothing reads the queue any more.
	if st := tracer.Stats(); st.Exported != 2048 || st.Dropped != 101 || st.Failed != 0 || st.Queued != 0 {
		t.Errorf("%+v", st)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "spans=100") {
		t.Errorf("%d warnings, want 1:\n%s", n, &log)
	}
	if err := tracer.Run(t.Context()); !errors.Is(err, otlp.ErrAlreadyRun) {
		t.Errorf("a second Run: %v", err)
	}
}

// TestCollectorAnswers: a batch is repeated if the collector asks for it, and rejected spans
// are counted.
func TestCollectorAnswers(t *testing.T) {
	partly := protowire.AppendTag(nil, 1, protowire.BytesType)
	partly = protowire.AppendBytes(partly, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3))
	var asked atomic.Int64
	for _, c := range []struct {
		name             string
		answer           func(http.ResponseWriter) bool
		exported, failed uint64
		messages         int
	}{
		{"busy once", func(w http.ResponseWriter) bool {
			if asked.Add(1) > 1 {
				return false
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}, 10, 0, 2},
		{"refuses", func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusBadRequest); return true }, 0, 10, 1},
		{"redirects", func(w http.ResponseWriter) bool {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		}, 0, 10, 1},
		{"rejects three spans", func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write(partly)
			return true
		}, 0, 10, 1},
		{"answers nonsense", func(w http.ResponseWriter) bool { _, _ = w.Write([]byte{0xff, 0xff}); return true }, 10, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			collector := otlptest.New(t)
			collector.Answer(c.answer)
			tracer := newTracer(t, otlp.Config{URL: collector.URL, Ratio: 1})
			record(tracer, 10)
			stop := run(t, tracer)
			for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
				if st := tracer.Stats(); st.Exported+st.Failed == 10 {
					break
				}
			}
			stop()
			if st := tracer.Stats(); st.Exported != c.exported || st.Failed != c.failed || collector.Messages() != c.messages {
				t.Errorf("%+v, %d messages", st, collector.Messages())
			}
		})
	}
}

func TestValidate(t *testing.T) {
	for _, ratio := range []float64{-0.1, 1.1, math.NaN()} {
		if _, err := otlp.New(otlp.Config{URL: "http://collector", Ratio: ratio}); !errors.Is(err, otlp.ErrRatio) {
			t.Errorf("%v: %v", ratio, err)
		}
	}
	if _, err := otlp.New(otlp.Config{URL: "http://user:SECRET@collector"}); !errors.Is(err, otlp.ErrURL) ||
		strings.Contains(err.Error(), "SECRET") {
		t.Error(err)
	}
}

// BenchmarkCall measures a call of four spans that is traced, and one that is not sampled.
func BenchmarkCall(b *testing.B) {
	for _, ratio := range []float64{0, 1} {
		b.Run(fmt.Sprint(ratio), func(b *testing.B) {
			tracer, err := otlp.New(otlp.Config{URL: "http://127.0.0.1:1", Ratio: ratio})
			if err != nil {
				b.Fatal(err)
			}
			base := trace.WithTracer(b.Context(), tracer)
			b.ReportAllocs()
			for b.Loop() {
				ctx, span := trace.StartCall(base, "call", time.Now(), "")
				for range 3 {
					_, child := trace.Start(ctx, "child")
					child.SetString("ferry.role", "host")
					child.End(nil)
				}
				span.End(nil)
			}
		})
	}
}
