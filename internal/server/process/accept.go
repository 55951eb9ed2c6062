package process

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

const acceptFailureEvery = time.Minute

// accepting counts and logs connections that could not be accepted. Listeners share it.
type accepting struct {
	failed atomic.Uint64

	mu      sync.Mutex // guards what follows
	logged  time.Time  // when a failure was last logged
	failing bool       // a failure was logged, and no recovery since
}

func (f *accepting) config(log *slog.Logger) sock.RetryConfig {
	return sock.RetryConfig{OnError: func(err error) { f.onError(log, err) }, OnRecover: func() { f.onRecover(log) }}
}

func (f *accepting) onError(log *slog.Logger, err error) {
	failed := f.failed.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.logged) >= acceptFailureEvery {
		f.logged, f.failing = now, true
		do := "find the cause in the error"
		if sock.IsDescriptorLimit(err) {
			do = "raise LimitNOFILE, or lower max_http_connections and max_websockets; matches over UDP continue, and /livez has a descriptor of its own"
		}
		log.Error("connections cannot be accepted", "error", err, "attempts", failed, "do", do)
	}
}

func (f *accepting) onRecover(log *slog.Logger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing {
		f.failing = false
		log.Info("connections are accepted again")
	}
}

type reservedKey struct{}

// closeReserved ends a connection with the reserved descriptor after its first answer, since
// the next one waits for it.
func closeReserved(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reserved, _ := r.Context().Value(reservedKey{}).(bool); reserved {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
