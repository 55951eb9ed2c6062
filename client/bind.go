package client

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

const (
	// rebindPause is the least time between two BINDs that answer ERROR 3: one
	// lost endpoint earns an ERROR for each datagram that is on its way.
	rebindPause = 100 * time.Millisecond
	// sendsPerNonce is how many BINDs share a nonce. A NAT may change the
	// endpoint while answers are lost, and the relay refuses an equal nonce
	// from another one.
	sendsPerNonce = 4
	// silentPings is how many PING periods of silence make a session bind
	// again; Unity's clients count the same.
	silentPings = 3
	// runWithin is how long Bind waits for Run, whose goroutine may come after it.
	runWithin = 5 * time.Second
	// maxTurnDoublings bounds the turn of an endpoint to 4 retry periods: the one that
	// answers after a restart of the relay must not wait long for its own.
	maxTurnDoublings = 2
)

// binding is the state of BIND. The session's lock guards it.
type binding struct {
	s *Session
	retry
	bound     atomic.Bool   // a BIND was confirmed at some time; read without the lock, too
	next      uint16        // the nonce of the next BIND
	last      uint16        // the nonce of the newest BIND
	used      bool          // next was sent already
	sentAt    int64         // time of the newest BIND
	turns     int           // endpoints that had their turn since the series began
	turnAt    int64         // when that of the present endpoint is over
	confirmed chan struct{} // closed when the relay has confirmed
	signer    proto.Signer
	refusals  refusals
}

// renew is false if it has ended the session.
func (b *binding) renew() bool {
	if !b.used {
		return true
	}
	if b.next == math.MaxUint16 {
		b.s.endLocked(errNonceExhausted)
		return false
	}
	b.next++
	b.used = false
	return true
}

// skip is renew in a series whose nonce has no answer.
func (b *binding) skip(now int64) bool {
	if b.refusals.note(now, b.sends) {
		b.s.log.Warn("another session uses this allocation")
		b.s.endLocked(ErrInUse)
		return false
	}
	return b.renew()
}

// begin starts a series of BINDs, with one time-out, or hurries a running one.
func (b *binding) begin(now, at int64) {
	if !b.active {
		if isClosed(b.confirmed) {
			b.confirmed = make(chan struct{})
		}
		b.start(now)
		b.turns, b.turnAt = 0, never
	}
	b.sends, b.retry.next = 0, at
}

// Bind waits until the relay has confirmed the binding; when that holds, it
// returns at once. Run has to be under way, or begin within 5 s.
//
// Errors: ctx.Err(), after which binding still goes on; that there is no Run; or why
// the session ended.
func (s *Session) Bind(ctx context.Context) error {
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	if !s.bind.active && !s.bind.bound.Load() {
		now := s.now()
		s.bind.begin(now, now)
		signal(s.kicked)
	}
	confirmed := s.bind.confirmed
	s.mu.Unlock()
	started, limit := s.started, time.NewTimer(runWithin)
	defer limit.Stop()
	for {
		select {
		case <-confirmed:
			return nil
		case <-s.done:
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		case <-started:
			started = nil
			limit.Stop()
		case <-limit.C:
			if !isClosed(s.started) {
				return errNotRunning
			}
		}
	}
}

// rebindTimeout is how long a later BIND may stay without an answer: the time in which a relay that
// was restarted takes its allocations back.
const rebindTimeout = time.Minute

func (b *binding) dueBind(now int64, buf []byte) ([]byte, int64) {
	limit := b.s.cfg.BindTimeout
	if b.bound.Load() {
		limit = rebindTimeout
	}
	if b.expired(now, limit) {
		b.s.log.Warn("relay does not answer BIND", "after", limit)
		err := ErrBindTimeout
		if failing := b.s.transport.failing.Load(); failing != nil {
			err = fmt.Errorf("%w, and the socket receives errors: %w", err, failing.err)
		}
		b.s.endLocked(err)
		return nil, never
	}
	if !b.active {
		if !b.bound.Load() {
			return nil, never
		}
		silent := b.s.transport.lastReceived.Load() + silentPings*int64(b.s.cfg.PingPeriod)
		if now < silent {
			return nil, silent
		}
		b.s.log.Info("relay is silent, binding again")
		b.again(now, now)
	}
	if now >= b.turnAt {
		b.turnServer(now)
	}
	if b.s.err != nil {
		return nil, never
	}
	if !b.due(now) {
		return nil, min(b.at(), b.turnAt, b.expiry(limit))
	}
	return b.send(now, buf), now
}

// turnServer gives the relay's next endpoint its turn. Turns get longer by the round, so that
// one is long enough for the round trip.
func (b *binding) turnServer(now int64) {
	t := &b.s.transport
	old := t.socket.Load()
	for i := range len(t.servers) - 1 {
		next, err := t.open((old.turn + 1 + i) % len(t.servers))
		if err != nil {
			continue
		}
		b.s.log.Info("relay does not answer, trying another endpoint", "endpoint", next.server)
		t.socket.Store(next)
		_ = old.Close()
		if !b.skip(now) {
			return
		}
		b.sends, b.retry.next = 0, now
		break
	}
	b.turns++
	b.turnAt = never
}

// send may end the session instead.
func (b *binding) send(now int64, buf []byte) []byte {
	if b.sends > 0 && b.sends%sendsPerNonce == 0 && !b.skip(now) {
		return nil
	}
	b.noteSent(now, b.s.cfg.RetryPeriod)
	if n := len(b.s.transport.servers); n > 1 && b.turnAt == never {
		b.turnAt = now + int64(b.s.cfg.RetryPeriod)<<min(b.turns/n, maxTurnDoublings)
	}
	b.last, b.used, b.sentAt = b.next, true, now
	t := &b.s.cfg.Ticket
	return b.signer.Append(buf[:0], proto.Bind{Nonce: b.next, ConnectionData: t.ConnectionData}, &t.Key)
}

func (b *binding) again(now, at int64) {
	b.refusals.firstNonce = false
	if !b.renew() {
		return
	}
	b.s.counters.rebinds.Add(1)
	b.begin(now, at)
	signal(b.s.kicked)
}

// onReceived ignores what came to the socket before Roam: that binding is gone.
func (b *binding) onReceived(now int64, at *socket) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if b.s.err != nil || !b.active || at != b.s.transport.socket.Load() {
		return
	}
	b.s.log.Debug("bound", "nonce", b.last, "first", !b.bound.Load())
	b.stop()
	b.refusals.noteAnswer()
	b.bound.Store(true)
	b.s.ping.next = now
	close(b.confirmed)
	signal(b.s.kicked)
}

// onMismatch takes ERROR 3. While a BIND is on its way it says nothing new
// unless that BIND is old, because then it has been lost or ignored.
func (b *binding) onMismatch(now int64) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	// What was sent before the BIND still earns errors for a round trip.
	onItsWay := b.sends == 0 || now-b.sentAt < max(int64(rebindPause), 2*int64(b.s.ping.smoothed))
	if b.s.err != nil || !b.bound.Load() && !b.active || b.active && onItsWay {
		return
	}
	first := !b.active
	if !first && !b.skip(now) {
		return
	}
	b.again(now, max(now, b.sentAt+int64(rebindPause)))
	b.refusals.firstNonce = first
}
