package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/ferryrelay/ferry/alloc"
)

// verdict is what a relay answers instead of a result. Its name travels, its
// err is what that means to the caller on the other side.
type verdict struct {
	name   string
	status int
	err    error
}

// verdicts are the errors of package alloc, and those of an [Operator]. Of two that fit the first is taken.
var verdicts = []verdict{
	{"not-found", http.StatusNotFound, alloc.ErrNotFound},
	{"code-not-found", http.StatusNotFound, alloc.ErrCodeNotFound},
	{"code-malformed", http.StatusBadRequest, alloc.ErrCodeMalformed},
	{"max-connections", http.StatusBadRequest, alloc.ErrMaxConnections},
	{"tenant-name", http.StatusBadRequest, alloc.ErrTenantName},
	{"region", http.StatusBadRequest, alloc.ErrRegion},
	{"full", http.StatusServiceUnavailable, alloc.ErrFull},
	{"draining", http.StatusServiceUnavailable, alloc.ErrDraining},
	{"outstanding", http.StatusTooManyRequests, alloc.ErrOutstanding},
	{"unavailable", http.StatusServiceUnavailable, alloc.ErrUnavailable},
	{"final", http.StatusConflict, ErrFinal},
	{"host", http.StatusConflict, ErrHost},
}

// Why a call did not come to the relay behind the listener at all. To the other
// side all of them are alloc.ErrUnavailable, as is a name that it does not know.
var (
	noCall      = verdict{"unknown-call", http.StatusNotFound, alloc.ErrUnavailable}
	noMethod    = verdict{"method", http.StatusMethodNotAllowed, alloc.ErrUnavailable}
	forbidden   = verdict{"forbidden", http.StatusForbidden, alloc.ErrUnavailable}
	malformed   = verdict{"malformed", http.StatusBadRequest, alloc.ErrUnavailable}
	tooLarge    = verdict{"too-large", http.StatusRequestEntityTooLarge, alloc.ErrUnavailable}
	keyReused   = verdict{"key-reused", http.StatusConflict, alloc.ErrUnavailable}
	cancelled   = verdict{"cancelled", http.StatusConflict, alloc.ErrUnavailable}
	tooMany     = verdict{"busy", http.StatusServiceUnavailable, alloc.ErrUnavailable}
	unavailable = verdict{"unavailable", http.StatusServiceUnavailable, alloc.ErrUnavailable}
	internal    = verdict{"internal", http.StatusInternalServerError, alloc.ErrUnavailable}
)

// refusal is a verdict with what it is about. It is an error on the relay's
// side.
type refusal struct {
	verdict
	detail string
}

// Error returns the name and what it is about.
func (r refusal) Error() string { return "cluster: " + r.name + ": " + r.detail }

func (v verdict) because(format string, args ...any) refusal {
	return refusal{v, fmt.Sprintf(format, args...)}
}

// refuse turns an error of the relay, or of what is before it, into what is
// answered. The text of an error that nobody knows stays here.
func refuse(err error) refusal {
	if r, ok := errors.AsType[refusal](err); ok {
		return r
	}
	for _, v := range verdicts {
		if errors.Is(err, v.err) {
			return v.because("%v", err)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return unavailable.because("the relay did not answer in time")
	}
	return internal.because("see the relay's log")
}

// meaning returns the error that a name stands for on the caller's side.
func meaning(name string) error {
	for _, v := range verdicts {
		if v.name == name {
			return v.err
		}
	}
	return alloc.ErrUnavailable
}
