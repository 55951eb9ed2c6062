package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

// The sizes of the tables, in buckets: below 20 MiB in all when they are full,
// 3 MiB when they are empty.
const (
	requestBuckets = 65536
	addressBuckets = 65536
	failedBuckets  = 16384
	forgerBuckets  = 8192
)

// bucketKey names a bucket of requests: who calls what.
type bucketKey struct {
	principal string
	call      callName
}

// limits are all counts of a handler. Its fields do not change; each table has
// a lock of its own.
type limits struct {
	requests  *limiter[bucketKey]
	addresses *limiter[netip.Prefix] // requests of players, whatever their token
	failed    *limiter[string]       // failed joins by principal
	failedAt  *limiter[netip.Prefix] // failed joins of players by address
	forgers   *limiter[netip.Prefix] // tokens that were looked at in vain
}

// Counts are how often callers have called, and in vain. Handlers that take over
// from one another share them, so that nobody begins anew. Each table has a lock
// of its own.
type Counts struct{ of *limits }

// NewCounts returns counts of nothing.
func NewCounts() *Counts { return &Counts{newLimits()} }

func newLimits() *limits {
	return &limits{
		requests:  newLimiter[bucketKey](requestBuckets),
		addresses: newLimiter[netip.Prefix](addressBuckets),
		failed:    newLimiter[string](failedBuckets),
		failedAt:  newLimiter[netip.Prefix](failedBuckets),
		forgers:   newLimiter[netip.Prefix](forgerBuckets),
	}
}

// from is where a request comes from, as limits see it.
type from struct {
	principal principal
	address   netip.Prefix
	counted   bool // by address: a player whose address is known
}

// hint returns where the player is, the zero address if that is not known. That
// of a backend says nothing about players.
func (f from) hint() netip.Addr {
	if !f.counted {
		return netip.Addr{}
	}
	return f.address.Addr()
}

const fromAddress = "too many requests from this address"

// tooMany is the problem of a caller that has to wait, nil without a wait.
func tooMany(what string, wait time.Duration) *api.Problem {
	if wait <= 0 {
		return nil
	}
	return later(statusProblem(http.StatusTooManyRequests, what), wait)
}

// forger refuses an address from which so many bad tokens came that no more are
// looked at: a signature costs more to check than to make up.
func (h *Handler) forger(address netip.Prefix) *api.Problem {
	if h.limits == nil {
		return nil
	}
	return tooMany(fromAddress, h.limits.forgers.wait(address, h.now()))
}

// strange counts a request that nobody is known to have sent, by its address
// alone, and whether its token had to be looked at.
func (h *Handler) strange(address netip.Prefix, why error) *api.Problem {
	if h.limits == nil {
		return nil
	}
	if errors.Is(why, errForged) && !errors.Is(why, ErrCannotTell) {
		h.limits.forgers.charge(address, h.cfg.perAddress(), h.now())
	}
	return tooMany(fromAddress, h.limits.addresses.take(address, h.cfg.perAddress(), h.now()))
}

// admitted counts a request by principal and by address. One that is refused
// for either is not counted for the other: who is beyond its own rate must not
// use up what others at its address may, nor lose what it may elsewhere.
func (h *Handler) admitted(ctx context.Context, f from, name callName) *api.Problem {
	if h.limits == nil {
		return nil
	}
	now := h.now()
	if f.counted {
		if p := tooMany(fromAddress, h.limits.addresses.wait(f.address, now)); p != nil {
			return p
		}
	}
	key := bucketKey{f.principal.name, name}
	p := tooMany("too many requests", h.limits.requests.take(key, h.cfg.perMinute(f.principal.kind), now))
	if p != nil {
		return p
	}
	if f.counted {
		if p := tooMany(fromAddress, h.limits.addresses.take(f.address, h.cfg.perAddress(), now)); p != nil {
			return p
		}
	}
	return tooMany("too many requests", h.takeTogether(ctx, f, string(name), h.cfg.perMinute(f.principal.kind)))
}

// mayGuess refuses a join of somebody too many of whose joins have failed.
func (h *Handler) mayGuess(f from) *api.Problem {
	if h.limits == nil {
		return nil
	}
	wait := h.limits.failed.wait(f.principal.name, h.now())
	if f.counted {
		wait = max(wait, h.limits.failedAt.wait(f.address, h.now()))
	}
	return tooMany("too many failed joins", wait)
}

// guessed counts a join that named no live code. Joins that were under way
// together may go beyond the limit, which lengthens the pause.
func (h *Handler) guessed(ctx context.Context, f from) {
	if h.limits == nil {
		return
	}
	most := h.cfg.failedJoins(f.principal.kind)
	h.limits.failed.charge(f.principal.name, most, h.now())
	if wait := h.takeTogether(ctx, f, failedJoin, most); wait > 0 {
		h.limits.failed.pause(f.principal.name, most, wait, h.now())
	}
	if f.counted {
		h.limits.failedAt.charge(f.address, h.cfg.failedJoins(KindPlayer), h.now())
	}
}
