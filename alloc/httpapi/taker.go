package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// takeTimeout bounds one question to a [Taker]. A store that takes longer does
// not count.
const takeTimeout = 20 * time.Millisecond

// failedJoin is what a Taker counts besides calls.
const failedJoin = "failedjoin"

// Taker counts by key for several processes. Its methods may be called from
// several goroutines.
type Taker interface {
	// Take counts one event of a key that may have perMinute, as many at once. If
	// there is none left it counts nothing, and says how long to wait. An error
	// means that nobody knows; then the count of this process alone decides.
	Take(ctx context.Context, key string, perMinute int) (ok bool, retryAfter time.Duration, err error)
}

// takeTogether counts an event of a player or a backend for all processes, and
// returns how long it has to wait, 0 if it need not. Nobody is locked out since
// the store is gone.
func (h *Handler) takeTogether(ctx context.Context, f from, what string, perMinute int) time.Duration {
	if h.cfg.Taker == nil || f.principal.anonymous {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	ok, wait, err := h.cfg.Taker.Take(ctx, takerKey(f.principal.name, what), perMinute)
	switch {
	case err != nil:
		h.log.Debug("limits: this process counts alone", "error", err)
		return 0
	case ok:
		return 0
	}
	return max(wait, time.Nanosecond)
}

// takerKey names a count. Names of players stay in this process.
func takerKey(principal, what string) string {
	sum := sha256.Sum256([]byte(principal))
	return hex.EncodeToString(sum[:16]) + ":" + what
}
