package httpapi

import (
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
}

func newLimits() *limits {
	return &limits{
		requests:  newLimiter[bucketKey](requestBuckets),
		addresses: newLimiter[netip.Prefix](addressBuckets),
		failed:    newLimiter[string](failedBuckets),
		failedAt:  newLimiter[netip.Prefix](failedBuckets),
	}
}

// from is where a request comes from, as limits see it.
type from struct {
	principal principal
	address   netip.Prefix
	counted   bool // by address: a player whose address is known
}

const fromAddress = "too many requests from this address"

// tooMany is the problem of a caller that has to wait, nil without a wait.
func tooMany(what string, wait time.Duration) *api.Problem {
	if wait <= 0 {
		return nil
	}
	return later(statusProblem(http.StatusTooManyRequests, what), wait)
}

// strange counts a request whose token nobody knows, by its address alone.
func (h *Handler) strange(address netip.Prefix) *api.Problem {
	if h.limits == nil {
		return nil
	}
	return tooMany(fromAddress, h.limits.addresses.take(address, h.cfg.perAddress(), h.now()))
}

// admitted counts a request by principal and by address. One that is refused
// for either is not counted for the other: who is beyond its own rate must not
// use up what others at its address may, nor lose what it may elsewhere.
func (h *Handler) admitted(f from, name callName) *api.Problem {
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
	if p != nil || !f.counted {
		return p
	}
	return tooMany(fromAddress, h.limits.addresses.take(f.address, h.cfg.perAddress(), now))
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
func (h *Handler) guessed(f from) {
	if h.limits == nil {
		return
	}
	h.limits.failed.charge(f.principal.name, h.cfg.failedJoins(f.principal.kind), h.now())
	if f.counted {
		h.limits.failedAt.charge(f.address, h.cfg.failedJoins(KindPlayer), h.now())
	}
}
