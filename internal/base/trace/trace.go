// Package trace records what a call of the API consists of, as spans in its context.
// It depends on no tracing library: [Tracer] and [Recorder] are interfaces that
// internal/server/observe/otlp implements.
//
// Tracing is off unless a [Tracer] is in the context of a call. The functions then do
// nothing, allocate nothing and may be called nevertheless. The same holds for all spans
// within a call that is not sampled.
//
// Attributes must not contain personal data, join codes, ids of allocations, keys, tokens,
// addresses of players or connection data. The text of an error may contain them and is
// therefore never recorded: a span has the kind of its error only.
package trace

import (
	"context"
	"net/http"
	"time"
)

// Kind is the position of a span in a call between processes.
type Kind uint8

// The kinds of spans.
const (
	Internal Kind = iota // work within a process
	Server               // the answer to a call from another process
	Client               // a call to another process
)

// Header is the header that names the caller's span, as W3C Trace Context defines it.
const Header = "Traceparent"

// Status is the HTTP status of a call that failed, as the error of its span.
type Status int

// Error returns the text of the status.
func (s Status) Error() string { return http.StatusText(int(s)) }

// Tracer starts the first span of a call in this process. It may be used concurrently.
type Tracer interface {
	// Start starts a span of kind Server that began at that time. Parent is the
	// caller's Header, or empty. If it is valid, the span belongs to the caller's trace
	// and is sampled if the caller's span is. It must come from a caller that may decide
	// so. Nil: the call is not sampled.
	Start(name string, began time.Time, parent string) Recorder
}

// Recorder is a span that is sampled. A goroutine at a time may use it, except for Child,
// which may be called concurrently.
type Recorder interface {
	// Child starts a span within this one.
	Child(name string, kind Kind) Recorder
	// SetString sets an attribute.
	SetString(key, value string)
	// SetInt sets an attribute.
	SetInt(key string, value int)
	// End ends the span with the result of its operation.
	End(err error)
	// Header returns the value of Header for a call that this span makes.
	Header() string
}

// Span is one operation. The zero Span records nothing.
type Span struct{ recorder Recorder }

// IsRecording reports whether the span is recorded.
func (s Span) IsRecording() bool { return s.recorder != nil }

// SetString sets an attribute.
func (s Span) SetString(key, value string) {
	if s.recorder != nil {
		s.recorder.SetString(key, value)
	}
}

// SetInt sets an attribute.
func (s Span) SetInt(key string, value int) {
	if s.recorder != nil {
		s.recorder.SetInt(key, value)
	}
}

// End ends the span with the result of its operation. It must be called once, and nothing
// after it.
func (s Span) End(err error) {
	if s.recorder != nil {
		s.recorder.End(err)
	}
}

// SetHeader names the span in the header of a call that it makes.
func (s Span) SetHeader(h http.Header) {
	if s.recorder != nil {
		h.Set(Header, s.recorder.Header())
	}
}

// The keys of a context's Tracer and Recorder.
type (
	tracerKey   struct{}
	recorderKey struct{}
)

// WithTracer returns a context whose calls are traced. Nil: ctx itself.
func WithTracer(ctx context.Context, t Tracer) context.Context {
	if t == nil {
		return ctx
	}
	return context.WithValue(ctx, tracerKey{}, t)
}

// StartCall starts the span of a call that began at that time, see [Tracer]. Without a
// tracer in ctx, or if the call is not sampled, it returns ctx and the zero Span.
func StartCall(ctx context.Context, name string, began time.Time, parent string) (context.Context, Span) {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return ctx, Span{}
	}
	return WithSpan(ctx, Span{t.Start(name, began, parent)})
}

// Start starts a span within the span of ctx. Without one it returns ctx and the zero Span.
func Start(ctx context.Context, name string) (context.Context, Span) {
	return start(ctx, name, Internal)
}

// StartClient is Start for a call to another process.
func StartClient(ctx context.Context, name string) (context.Context, Span) {
	return start(ctx, name, Client)
}

func start(ctx context.Context, name string, kind Kind) (context.Context, Span) {
	parent, ok := ctx.Value(recorderKey{}).(Recorder)
	if !ok {
		return ctx, Span{}
	}
	return WithSpan(ctx, Span{parent.Child(name, kind)})
}

// SpanOf returns the span of ctx, or the zero Span.
func SpanOf(ctx context.Context) Span {
	r, _ := ctx.Value(recorderKey{}).(Recorder)
	return Span{r}
}

// WithSpan returns a context whose spans begin within s, for work that outlives the context
// of s. It returns s as well.
func WithSpan(ctx context.Context, s Span) (context.Context, Span) {
	if s.recorder == nil {
		return ctx, s
	}
	return context.WithValue(ctx, recorderKey{}, s.recorder), s
}
