package httpapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/hook"
)

// From how long on a hook is slow: one that must not block, and one that may ask another process.
const (
	slowHook     = 100 * time.Millisecond
	slowIdentify = 2 * time.Second
)

type hooks struct {
	log         *slog.Logger
	crossOrigin http.CrossOriginProtection // of Identify

	authenticate, identify, onRequest hook.Reporter
}

func newHooks(log *slog.Logger) *hooks {
	if log == nil {
		log = slog.Default()
	}
	const waits = "its caller waits for it"
	return &hooks{
		log:          log,
		authenticate: hook.Reporter{Name: "Authenticate", Slow: slowIdentify, Effect: waits},
		identify:     hook.Reporter{Name: "Identify", Slow: slowIdentify, Effect: waits},
		onRequest:    hook.Reporter{Name: "OnRequest", Slow: slowHook, Effect: waits},
	}
}

var started = time.Now()

func guard(log *slog.Logger, h *hook.Reporter, call func()) (panicked bool) {
	began := time.Since(started)
	defer func() {
		fault := recover()
		panicked = fault != nil
		now := time.Since(started)
		h.Done(log, now, now-began, fault)
	}()
	call()
	return false
}

var errHookPanic = fmt.Errorf("%w: a hook panicked, see the log", ErrAuthUnavailable)

func (h *hooks) identity(r *hook.Reporter, call func() (alloc.Caller, error)) (identity alloc.Caller, err error) {
	if guard(h.log, r, func() { identity, err = call() }) {
		return alloc.Caller{}, errHookPanic
	}
	return identity, err
}

// recoverPanic ends the panic of a call, such as that of a Relay or a Store of the embedding program, with
// a line in the log. Its answer may have begun.
func (h *hooks) recoverPanic(w http.ResponseWriter, r *http.Request, id string) {
	fault := recover()
	switch fault {
	case nil:
		return
	case http.ErrAbortHandler:
		panic(fault)
	}
	h.log.Error("a call of the API panicked", "requestId", id, traceOf(r.Header), "panic", fault, "stack", string(debug.Stack()))
	p := statusProblem(http.StatusInternalServerError, "internal error")
	write(w, p.Status, typeProblem, p)
}
