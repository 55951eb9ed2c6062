package otlp

import (
	"context"
	"errors"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	otel "go.opentelemetry.io/otel/trace"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/trace"
)

// recorder implements trace.Recorder. Its fields are immutable.
type recorder struct {
	tracer otel.Tracer
	ctx    context.Context // of span only
	span   otel.Span
}

// kinds are the kinds of OpenTelemetry.
var kinds = [...]otel.SpanKind{
	trace.Internal: otel.SpanKindInternal, trace.Server: otel.SpanKindServer, trace.Client: otel.SpanKindClient,
}

// Child starts a span within this one.
func (r *recorder) Child(name string, kind trace.Kind) trace.Recorder {
	ctx, span := r.tracer.Start(r.ctx, name, otel.WithSpanKind(kinds[kind]))
	return &recorder{tracer: r.tracer, ctx: ctx, span: span}
}

// SetString sets an attribute.
func (r *recorder) SetString(key, value string) { r.span.SetAttributes(attribute.String(key, value)) }

// SetInt sets an attribute.
func (r *recorder) SetInt(key string, value int) { r.span.SetAttributes(attribute.Int(key, value)) }

// Header returns the traceparent of this span.
func (r *recorder) Header() string {
	carrier := make(propagation.MapCarrier, 1)
	propagation.TraceContext{}.Inject(r.ctx, carrier)
	return carrier["traceparent"]
}

// End ends the span. An error is recorded by its kind, and makes the span one that failed
// unless only the caller's request is the reason.
func (r *recorder) End(err error) {
	if err != nil {
		kind, failed := errorKind(err)
		r.span.SetAttributes(attribute.String("error.type", kind))
		if failed {
			r.span.SetStatus(codes.Error, "")
		}
	}
	r.span.End()
}

// errorKinds are the errors that spans name, the most specific ones first. Failed is false
// for those of which the request is the reason.
var errorKinds = []struct {
	err    error
	kind   string
	failed bool
}{
	{alloc.ErrCodeNotFound, "code_not_found", false},
	{alloc.ErrCodeMalformed, "code_malformed", false},
	{alloc.ErrNotFound, "not_found", false},
	{alloc.ErrMaxConnections, "max_connections", false},
	{alloc.ErrRegion, "region", false},
	{alloc.ErrTenantName, "tenant_name", false},
	{alloc.ErrOutstanding, "outstanding", false},
	{alloc.ErrPlayerLimit, "player_limit", false},
	{alloc.ErrProjectQuota, "project_quota", false},
	{alloc.ErrProjectInactive, "project_inactive", false},
	{alloc.ErrFull, "full", true},
	{alloc.ErrDraining, "draining", true},
	{context.Canceled, "canceled", true},
	{context.DeadlineExceeded, "timeout", true},
	{alloc.ErrStoreUnavailable, "store_unavailable", true},
	{alloc.ErrUnavailable, "unavailable", true},
}

// errorKind returns the kind of an error, and whether the operation failed by a fault.
func errorKind(err error) (kind string, failed bool) {
	if status, ok := errors.AsType[trace.Status](err); ok {
		return strconv.Itoa(int(status)), true
	}
	if _, ok := errors.AsType[alloc.DeniedError](err); ok {
		return "denied", false
	}
	for _, k := range errorKinds {
		if errors.Is(err, k.err) {
			return k.kind, k.failed
		}
	}
	return "_OTHER", true
}
