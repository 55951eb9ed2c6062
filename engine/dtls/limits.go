package dtls

import (
	"sync/atomic"

	rates "github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

var (
	// helloRate: answers to hellos without a valid cookie. A thousand players behind
	// one address, of which each repeats its hello once a second, get all of theirs.
	// To a forged address, 1,000 cookies are 44 KB a second.
	helloRate = rates.Rate{IntervalMicros: 1_000, Burst: 2_000}
	// directRate: handshakes that are started without a cookie. Above it, a hello is
	// answered with one.
	directRate = rates.Rate{IntervalMicros: 20_000, Burst: 64}
	// deriveRate: key derivations, of 20 µs each, of handshakes with a cookie: 1 % of
	// a core, for 1,000 players behind one address at once.
	deriveRate = rates.Rate{IntervalMicros: 2_000, Burst: 1_000}
)

// maxDerivations is the number of key derivations of a handshake that was started
// without a cookie. An honest client needs one; forged messages may cause the others.
const maxDerivations = 4

// retryRate: key derivations of one handshake with a cookie. Forged messages may use
// them up, but not for longer than they are sent.
var retryRate = rates.Rate{IntervalMicros: 250_000, Burst: maxDerivations}

// unbindableRate: key derivations for allocations that have ended or never existed, of
// all sources: 4 % of a core. Anyone can name such an id, and knows no key of it.
var unbindableRate = rates.Rate{IntervalMicros: 500, Burst: 1_000}

// prefixGates is the number of gates, chosen by a keyed hash of the prefix.
const prefixGates = 4096

type gates [prefixGates]atomic.Uint64

func (g *gates) of(prefix endpoint.Endpoint, secret uint64) *atomic.Uint64 {
	return &g[hashPrefix(prefix, secret)%prefixGates]
}

// limits are the gates of all workers. Any goroutine may use them.
type limits struct {
	secret                  uint64
	hellos, direct, derives gates
	unbindable              atomic.Uint64 // gate of unbindableRate
}

func (l *limits) mayAnswer(prefix endpoint.Endpoint, now int64) bool {
	return helloRate.Allows(l.hellos.of(prefix, l.secret), millis(now))
}

func (l *limits) takeAnswer(prefix endpoint.Endpoint, now int64) bool {
	return helloRate.Take(l.hellos.of(prefix, l.secret), millis(now))
}

func (l *limits) takeDirect(prefix endpoint.Endpoint, now int64) bool {
	return directRate.Take(l.direct.of(prefix, l.secret), millis(now))
}

func (l *limits) takeDerivation(prefix endpoint.Endpoint, now int64) bool {
	return deriveRate.Take(l.derives.of(prefix, l.secret), millis(now))
}

func (l *limits) takeUnbindable(now int64) bool {
	return unbindableRate.Take(&l.unbindable, millis(now))
}

func millis(ns int64) int64 { return ns / 1e6 }

// hashPrefix is keyed, so that an attacker cannot choose prefixes that collide.
func hashPrefix(p endpoint.Endpoint, secret uint64) uint64 {
	x := endpoint.Mix64(endpoint.Mix64(p.Hi^secret) ^ p.Lo)
	return x ^ x>>32
}
