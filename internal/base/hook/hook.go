// Package hook watches functions of an embedding program that a library calls: it logs panics and slow calls,
// and recognises calls from inside such a function.
package hook

import (
	"log/slog"
	"reflect"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// logEvery is the shortest time between two lines about the panics of one function, about its
// errors, and about its slow calls.
const logEvery = time.Minute

// Reporter logs what is wrong with one function. Any goroutine may call its methods.
type Reporter struct {
	Name string
	// Slow is from how long on a call is slow. Zero: none is.
	Slow   time.Duration
	Effect string

	mu     sync.Mutex // guards what follows
	panics lines
	slow   lines
	errors lines
}

type lines struct {
	last  time.Duration // of the last line
	any   bool          // there was one
	calls int           // since then
}

// take counts a call, and returns how many the next line is about, 0 if it is not due.
func (l *lines) take(now time.Duration) (calls int) {
	l.calls++
	if l.any && now-l.last < logEvery {
		return 0
	}
	calls, l.last, l.any, l.calls = l.calls, now, true, 0
	return calls
}

// Done reports a call that has ended: when, on any clock, after how long, and with the result of
// recover. The goroutine that panicked calls it.
func (r *Reporter) Done(log *slog.Logger, now, took time.Duration, fault any) {
	slow := r.Slow > 0 && took >= r.Slow
	if fault == nil && !slow {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if fault != nil {
		if calls := r.panics.take(now); calls > 0 {
			log.Error("a hook panicked; the relay goes on",
				"hook", r.Name, "panic", fault, "calls_since_last_line", calls, "stack", string(debug.Stack()))
		}
	}
	if slow {
		if calls := r.slow.take(now); calls > 0 {
			log.Warn("a hook is slow: "+r.Effect,
				"hook", r.Name, "took", took, "threshold", r.Slow, "calls_since_last_line", calls)
		}
	}
}

// Failed reports an error of the program's own, of which the caller of the API learns nothing.
func (r *Reporter) Failed(log *slog.Logger, now time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if calls := r.errors.take(now); calls > 0 {
		log.Error("a hook failed", "hook", r.Name, "error", err, "calls_since_last_line", calls)
	}
}

// running is how many hooks run now, in the whole process.
var running atomic.Int64

// Begin must be called before a hook is, and End after it.
func Begin() { running.Add(1) }

// End is paired with Begin.
func End() { running.Add(-1) }

// Callers are functions that call hooks. They must be too large to be inlined.
type Callers map[uintptr]bool

// CallersOf returns the functions, each of which is a func value.
func CallersOf(functions ...any) Callers {
	entries := make(Callers)
	for _, f := range functions {
		entries[runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Entry()] = true
	}
	return entries
}

// Running reports whether a hook runs that one of them has called, and has called the caller, directly or
// not, on this goroutine. It walks the stack, which costs microseconds, only while any hook runs.
func (c Callers) Running() bool {
	if running.Load() == 0 {
		return false
	}
	var pcs [64]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		for _, pc := range pcs[:n] {
			if f := runtime.FuncForPC(pc - 1); f != nil && c[f.Entry()] {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}
