package otlp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/ferryrelay/ferry/internal/base/trace"
)

const (
	// queueSpans is the size of the queue, in spans of about 1 KiB.
	queueSpans = 2048
	// maxBatch is the maximum number of spans in a message.
	maxBatch = 512
	// exportInterval is the longest time for which a span waits for others.
	exportInterval = 2 * time.Second
	// exportTimeout bounds the export of one batch, including its repetitions.
	exportTimeout = 10 * time.Second
	// retryAfter is the time until the first repetition. It doubles each time.
	retryAfter = 500 * time.Millisecond
	// finishTimeout bounds the exports after the end of the context of Run.
	finishTimeout = 2 * time.Second
	// warnInterval is the least time between two warnings.
	warnInterval = time.Minute
)

// scopeNameText is the name of the instrumentation scope.
const scopeNameText = "github.com/ferryrelay/ferry"

// defaultPath is the path of a collector that OTLP defines.
const defaultPath = "/v1/traces"

// Errors of [Config.Validate] and of a second Run.
var (
	ErrURL        = errors.New("otlp: not a usable URL")
	ErrRatio      = errors.New("otlp: the ratio is not within 0 to 1")
	ErrAlreadyRun = errors.New("otlp: Run was called before")
)

// Config configures a [Tracer].
type Config struct {
	// URL is the traces endpoint of the collector, http or https, without a user, a query
	// and a fragment. Without a path it gets /v1/traces. Required.
	URL string
	// Ratio is the share of calls without a parent that are sampled, 0 to 1.
	Ratio float64
	// Attributes describe the process, as names and values in turn.
	Attributes []string
	// Logger gets a warning, at most one per minute, if spans are dropped. Nil: no log.
	Logger *slog.Logger
}

// Validate returns ErrURL or ErrRatio with the reason.
func (c *Config) Validate() error {
	if !(c.Ratio >= 0 && c.Ratio <= 1) { // catches NaN as well
		return fmt.Errorf("%w: %v", ErrRatio, c.Ratio)
	}
	_, err := c.endpoint()
	return err
}

// endpoint returns the URL with its path.
func (c *Config) endpoint() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil: // The error would quote the text.
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
	default:
		if u.Path == "" || u.Path == "/" {
			u.Path = defaultPath
		}
		return u, nil
	}
	return nil, fmt.Errorf("%w: it has to be http://HOST:PORT or https://HOST:PORT, and may have a path, but no user, query and fragment", ErrURL)
}

// Tracer samples calls and exports their spans. Its methods may be called concurrently.
type Tracer struct {
	tracer   otel.Tracer
	exporter *otlptrace.Exporter
	http     *http.Client // of exporter
	host     string       // of the collector
	queue    chan sdk.ReadOnlySpan
	log      *slog.Logger
	counts   struct{ exported, dropped, failed atomic.Uint64 }

	ran     atomic.Bool
	stopped atomic.Bool // no goroutine reads the queue any more
	warned  time.Time   // used by Run only
	reports uint64      // dropped and failed spans at the last warning; used by Run only
}

var _ trace.Tracer = (*Tracer)(nil)

// New returns a tracer, or an error of [Config.Validate]. It starts no goroutine and opens
// no connection before Run.
func New(cfg Config) (*Tracer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	target, err := cfg.endpoint()
	if err != nil {
		return nil, err
	}
	t := &Tracer{
		host: target.Host, queue: make(chan sdk.ReadOnlySpan, queueSpans),
		log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		// Its own client, so that Run can close the connections at its end.
		http: &http.Client{
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxConnsPerHost: 1, IdleConnTimeout: 30 * time.Second},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	t.exporter = otlptrace.NewUnstarted(otlptracehttp.NewClient(
		otlptracehttp.WithEndpointURL(target.String()), otlptracehttp.WithHTTPClient(t.http),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: retryAfter, MaxInterval: exportTimeout / 2, MaxElapsedTime: exportTimeout,
		}),
	))
	var about []attribute.KeyValue
	for i := 0; i+1 < len(cfg.Attributes); i += 2 {
		about = append(about, attribute.String(cfg.Attributes[i], cfg.Attributes[i+1]))
	}
	// WithResource adds OTEL_RESOURCE_ATTRIBUTES to the attributes of the process.
	t.tracer = sdk.NewTracerProvider(
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Ratio))),
		sdk.WithResource(resource.NewSchemaless(about...)),
		sdk.WithRawSpanLimits(sdk.SpanLimits{
			AttributeValueLengthLimit: 256, AttributeCountLimit: 32, EventCountLimit: 0, LinkCountLimit: 0,
		}),
		sdk.WithSpanProcessor((*processor)(t)),
	).Tracer(scopeNameText)
	return t, nil
}

// Start implements trace.Tracer.
func (t *Tracer) Start(name string, began time.Time, parent string) trace.Recorder {
	ctx := context.Background()
	if parent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
	}
	ctx, span := t.tracer.Start(ctx, name, otel.WithTimestamp(began), otel.WithSpanKind(otel.SpanKindServer))
	if !span.IsRecording() {
		return nil
	}
	return &recorder{tracer: t.tracer, ctx: ctx, span: span}
}

// Stats are counts since New.
type Stats struct {
	// Exported counts spans that the collector has accepted. Dropped counts those that
	// did not fit into the queue, Failed those of messages that the collector did not
	// accept, or not all of.
	Exported, Dropped, Failed uint64
	// Queued is how many spans wait.
	Queued int
}

// Stats returns the counts.
func (t *Tracer) Stats() Stats {
	return Stats{
		Exported: t.counts.exported.Load(), Dropped: t.counts.dropped.Load(), Failed: t.counts.failed.Load(),
		Queued: len(t.queue),
	}
}

// Run exports spans until ctx ends, then those that are left, for 2 s at most, and returns
// nil when no goroutine is left. It can be called once.
func (t *Tracer) Run(ctx context.Context) error {
	if !t.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	exports, cut := context.WithCancel(context.WithoutCancel(ctx))
	var limiting sync.WaitGroup
	limiting.Go(func() {
		select {
		case <-ctx.Done():
		case <-exports.Done():
			return
		}
		late := time.NewTimer(finishTimeout)
		defer late.Stop()
		select {
		case <-late.C:
			cut()
		case <-exports.Done():
		}
	})
	err := t.exporter.Start(exports)
	t.exportAll(ctx, exports)
	t.stopped.Store(true)
	err = errors.Join(err, t.exporter.Shutdown(context.WithoutCancel(ctx)))
	cut()
	limiting.Wait()
	t.http.CloseIdleConnections()
	return err
}

// exportAll exports batches with the context exports until ctx ends, and then the rest.
func (t *Tracer) exportAll(ctx, exports context.Context) {
	batch := make([]sdk.ReadOnlySpan, 0, maxBatch)
	ticker := time.NewTicker(exportInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case span := <-t.queue:
			if batch = append(batch, span); len(batch) < maxBatch {
				continue
			}
		case <-ticker.C:
		case <-ctx.Done():
			continue
		}
		batch = t.export(exports, batch)
	}
	for {
		select {
		case span := <-t.queue:
			if batch = append(batch, span); len(batch) == maxBatch {
				batch = t.export(exports, batch)
			}
			continue
		default:
		}
		t.export(exports, batch)
		return
	}
}

// export exports a batch and returns it empty.
func (t *Tracer) export(ctx context.Context, batch []sdk.ReadOnlySpan) []sdk.ReadOnlySpan {
	n := uint64(len(batch))
	var err error
	if n > 0 {
		within, cancel := context.WithTimeout(ctx, exportTimeout)
		err = t.exporter.ExportSpans(within, batch)
		cancel()
	}
	if err == nil {
		t.counts.exported.Add(n)
	} else {
		t.counts.failed.Add(n)
	}
	t.warn(err)
	clear(batch)
	return batch[:0]
}

// warn logs that spans were dropped since the last warning, at most once a minute.
func (t *Tracer) warn(err error) {
	lost := t.counts.dropped.Load() + t.counts.failed.Load()
	if lost == t.reports || !t.warned.IsZero() && time.Since(t.warned) < warnInterval {
		return
	}
	attrs := []any{"spans", lost - t.reports, "collector", t.host}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	t.log.Warn("traces: spans were dropped; calls are not affected", attrs...)
	t.warned, t.reports = time.Now(), lost
}

// processor is a Tracer as the span processor of its provider.
type processor Tracer

func (*processor) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd queues a span. It does not block.
func (p *processor) OnEnd(span sdk.ReadOnlySpan) {
	if !p.stopped.Load() {
		select {
		case p.queue <- span:
			return
		default:
		}
	}
	p.counts.dropped.Add(1)
}

func (*processor) Shutdown(context.Context) error   { return nil }
func (*processor) ForceFlush(context.Context) error { return nil }
