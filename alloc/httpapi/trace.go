package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/base/trace"
)

// spanNames are the names of the spans of calls: method and route.
var spanNames = map[callName]struct{ name, route string }{
	callAllocate: {"POST /v1/allocate", "/v1/allocate"},
	callJoinCode: {"POST /v1/joincode", "/v1/joincode"},
	callJoin:     {"POST /v1/join", "/v1/join"},
	callMigrate:  {"POST /v1/migrate", "/v1/migrate"},
	callLeave:    {"POST /v1/leave", "/v1/leave"},
	callRegions:  {"GET /v1/regions", "/v1/regions"},
	callChoose:   {"POST /v1/regions/choose", "/v1/regions/choose"},
}

// startSpan starts the span of a call that began at that time, if the context of the
// request has a tracer.
//
// Only a backend may name the trace of its call, and thereby decide whether it is sampled.
// A token of a player is in the hands of its game client: with the header it could have
// each of its calls sampled, whatever ratio the operator has set, and could add spans to the
// traces of others.
func startSpan(r *http.Request, p principal, c call, id string, began time.Time) (context.Context, trace.Span) {
	parent := ""
	if p.kind == KindServer {
		parent = r.Header.Get(trace.Header)
	}
	names := spanNames[c.name]
	ctx, span := trace.StartCall(r.Context(), names.name, began, parent)
	span.SetString("http.request.method", r.Method)
	span.SetString("http.route", names.route)
	span.SetString("ferry.request_id", id)
	return ctx, span
}

// endSpan ends the span of a call with its status.
func endSpan(span trace.Span, a answer, problem *api.Problem) {
	if !span.IsRecording() {
		return
	}
	status := a.status
	if problem != nil {
		status = problem.Status
	}
	span.SetInt("http.response.status_code", status)
	if status >= http.StatusInternalServerError {
		span.End(trace.Status(status))
		return
	}
	span.End(nil)
}
