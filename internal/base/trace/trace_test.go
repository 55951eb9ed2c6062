package trace_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/base/trace"
)

// unsampled is a tracer that samples no call.
type unsampled struct{}

func (unsampled) Start(string, time.Time, string) trace.Recorder { return nil }

var sink context.Context

// call makes all calls of this package that a call of the API makes.
func call(ctx context.Context, began time.Time, h http.Header) {
	ctx, span := trace.StartCall(ctx, "POST /v1/allocate", began, "")
	span.SetInt("http.response.status_code", 201)
	ctx, inner := trace.Start(ctx, "reserve")
	inner.SetString("ferry.role", "host")
	ctx, client := trace.StartClient(ctx, "reserve-host")
	client.SetHeader(h)
	client.End(nil)
	inner.End(context.Canceled)
	ctx, _ = trace.WithSpan(ctx, trace.SpanOf(ctx))
	span.End(nil)
	sink = ctx
}

// TestOff: without a tracer, and for calls that are not sampled, nothing is allocated.
func TestOff(t *testing.T) {
	header := make(http.Header)
	began := time.Now()
	base, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for name, ctx := range map[string]context.Context{
		"off":       trace.WithTracer(base, nil),
		"unsampled": trace.WithTracer(base, unsampled{}),
	} {
		if n := testing.AllocsPerRun(1000, func() { call(ctx, began, header) }); n != 0 {
			t.Errorf("%s: %v allocations per call, want 0", name, n)
		}
		if _, span := trace.StartCall(ctx, "x", began, ""); span.IsRecording() {
			t.Errorf("%s: the call is recorded", name)
		}
	}
	if len(header) > 0 {
		t.Errorf("a span that is not recorded has set the header %v", header)
	}
}

func BenchmarkOff(b *testing.B) {
	ctx, began, header := b.Context(), time.Now(), make(http.Header)
	b.ReportAllocs()
	for b.Loop() {
		call(ctx, began, header)
	}
}
