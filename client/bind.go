package client

import (
	"context"
	"math"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

const (
	// rebindPause is the least time between two BINDs that answer ERROR 3: one
	// lost endpoint earns an ERROR for each datagram that is on its way.
	rebindPause = 100 * time.Millisecond
	// sendsPerNonce is how many BINDs share a nonce. The relay takes an equal
	// nonce from an equal endpoint only, and a NAT may change the endpoint
	// while answers are lost, so unanswered BINDs move on.
	sendsPerNonce = 4
	// silentPings is how many PING periods of silence make a session bind
	// again; Unity's clients count the same.
	silentPings = 3
	// maxTurnDoublings bounds the turn of an endpoint to 4 retry periods: the one that
	// answers after a restart of the relay must not wait long for its own.
	maxTurnDoublings = 2
)

// binding is the state of BIND. It belongs to the lock of its session.
type binding struct {
	retry
	next      uint16        // the nonce of the next BIND
	last      uint16        // the nonce of the newest BIND
	used      bool          // next was sent already
	sentAt    int64         // time of the newest BIND
	turns     int           // endpoints that had their turn since the series began
	turnAt    int64         // when that of the present endpoint is over
	confirmed chan struct{} // closed when the relay has confirmed
}

func newBinding(nonce uint16) binding {
	return binding{next: nonce, last: nonce, sentAt: math.MinInt64 / 2, confirmed: make(chan struct{})}
}

// renew makes sure that the next BIND has a nonce of its own. It is false when
// there is none left.
func (b *binding) renew() bool {
	if !b.used {
		return true
	}
	if b.next == math.MaxUint16 {
		return false
	}
	b.next++
	b.used = false
	return true
}

// begin starts a series of BINDs at a time, or hurries one that runs. The
// series counts as one for its time-out.
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

// Bind binds the allocation and waits until the relay has confirmed it; when
// that is done and holds, it returns at once. Run has to be under way.
//
// Errors: ctx.Err(), after which binding still goes on; or why the session
// ended, ErrBindTimeout and EndedError first of all.
func (s *Session) Bind(ctx context.Context) error {
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return s.err
	}
	if !s.bind.active && !s.bound.Load() {
		now := s.now()
		s.bind.begin(now, now)
		s.kick()
	}
	confirmed := s.bind.confirmed
	s.mu.Unlock()
	select {
	case <-confirmed:
		return nil
	case <-s.done:
		return s.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dueBind is the part of due that keeps the session bound.
func (s *Session) dueBind(now int64, buf []byte) ([]byte, int64) {
	b := &s.bind
	limit := s.cfg.BindTimeout
	if s.bound.Load() {
		limit = s.cfg.RebindTimeout
	}
	if b.expired(now, limit) {
		s.log.Warn("relay does not answer BIND", "after", limit)
		s.endLocked(ErrBindTimeout)
		return nil, never
	}
	if !b.active {
		if !s.bound.Load() {
			return nil, never
		}
		silent := s.lastReceived.Load() + silentPings*int64(s.cfg.PingPeriod)
		if now < silent {
			return nil, silent
		}
		s.log.Info("relay is silent, binding again")
		s.rebind(now, now)
	}
	if now >= b.turnAt {
		s.turnServer(now)
	}
	if s.err != nil {
		return nil, never
	}
	if !b.due(now) {
		return nil, min(b.at(), b.turnAt, b.expiry(limit))
	}
	return s.sendBind(now, buf), now
}

// turnServer gives the relay's next endpoint its turn, from a socket of its own. One for whose
// family no socket can be opened is passed over. Turns get longer by the round, so that one is
// long enough for the round trip.
func (s *Session) turnServer(now int64) {
	b, old := &s.bind, s.conn.Load()
	for i := range len(s.servers) - 1 {
		next, err := s.open((old.turn + 1 + i) % len(s.servers))
		if err != nil {
			continue
		}
		s.log.Info("relay does not answer, trying another endpoint", "endpoint", next.server)
		s.conn.Store(next)
		_ = old.Close()
		if !b.renew() {
			s.endLocked(ErrNonceExhausted)
			return
		}
		b.sends, b.retry.next = 0, now
		break
	}
	b.turns++
	b.turnAt = never
}

// sendBind appends the next BIND. It may end the session instead, for want of
// a nonce.
func (s *Session) sendBind(now int64, buf []byte) []byte {
	b := &s.bind
	if b.sends > 0 && b.sends%sendsPerNonce == 0 && !b.renew() {
		s.endLocked(ErrNonceExhausted)
		return nil
	}
	b.noteSent(now, s.cfg.RetryPeriod)
	if n := len(s.servers); n > 1 && b.turnAt == never {
		b.turnAt = now + int64(s.cfg.RetryPeriod)<<min(b.turns/n, maxTurnDoublings)
	}
	b.last, b.used, b.sentAt = b.next, true, now
	s.counters.binds.Add(1)
	t := &s.cfg.Ticket
	return s.signer.Append(buf[:0], proto.Bind{Nonce: b.next, ConnectionData: t.ConnectionData}, &t.Key)
}

// rebind binds again with a new nonce, not before a time.
func (s *Session) rebind(now, at int64) {
	if !s.bind.renew() {
		s.endLocked(ErrNonceExhausted)
		return
	}
	s.counters.rebinds.Add(1)
	s.bind.begin(now, at)
	s.kick()
}

// onBindReceived processes the relay's confirmation of the binding. What comes to the
// socket before Roam speaks of a binding that is gone.
func (s *Session) onBindReceived(now int64, at *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || !s.bind.active || at != s.conn.Load() {
		return
	}
	s.log.Debug("bound", "nonce", s.bind.last, "first", !s.bound.Load())
	s.bind.stop()
	s.bound.Store(true)
	s.ping.next = now
	close(s.bind.confirmed)
	s.kick()
}

// onMismatch takes ERROR 3. While a BIND is on its way it says nothing new
// unless that BIND is old, because then it has been lost or ignored.
func (s *Session) onMismatch(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.bind
	fresh := now-b.sentAt < int64(rebindPause)
	if s.err != nil || !s.bound.Load() && !b.active || b.active && fresh {
		return
	}
	s.rebind(now, max(now, b.sentAt+int64(rebindPause)))
}

// Roam moves the session to a new local socket, as a phone does that changes
// networks, and binds it; Bind waits until that is done. What was waiting in
// the old socket is lost. Errors are the system's, which leave everything as
// it was, or why the session ended.
func (s *Session) Roam() error {
	conn, err := s.open(s.conn.Load().turn)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		_ = conn.Close()
		return s.err
	}
	old := s.conn.Swap(conn)
	if s.bound.Load() || s.bind.active {
		now := s.now()
		s.rebind(now, now)
	}
	err = s.err
	s.mu.Unlock()
	_ = old.Close()
	return err
}

// never is a time that does not come, in nanoseconds of the session's clock.
const never = math.MaxInt64

// retry is the schedule of one request that is repeated until it is answered.
// Times are nanoseconds of the session's clock.
type retry struct {
	active bool
	since  int64 // when it was started
	next   int64 // when it is due again
	sends  int   // how often it was sent
}

func (r *retry) start(now int64) { *r = retry{active: true, since: now, next: now} }

func (r *retry) stop() { *r = retry{} }

// due reports whether the request has to be sent now.
func (r *retry) due(now int64) bool { return r.active && now >= r.next }

// noteSent sets the next time: after period/4, period/2, and then each period.
func (r *retry) noteSent(now int64, period time.Duration) {
	shift := max(0, 2-r.sends)
	r.sends++
	r.next = now + int64(period>>shift)
}

// at returns when the request is due, or never.
func (r *retry) at() int64 {
	if !r.active {
		return never
	}
	return r.next
}

// expired reports whether the request has been active for limit.
func (r *retry) expired(now int64, limit time.Duration) bool {
	return r.active && now-r.since >= int64(limit)
}

// expiry returns when expired becomes true, or never.
func (r *retry) expiry(limit time.Duration) int64 {
	if !r.active {
		return never
	}
	return r.since + int64(limit)
}

// pingsInFlight is how many PINGs are remembered. A path that holds more than
// that many periods is beyond the silence that makes the session bind again.
const pingsInFlight = 8

// pinger is the keep-alive. It belongs to the lock of its session.
type pinger struct {
	next     int64  // when the next PING is due
	number   uint16 // of the newest PING; wraps
	flight   [pingsInFlight]pingSent
	smoothed time.Duration
	newest   time.Duration
}

// pingSent is a PING that has not come back.
type pingSent struct {
	open   bool
	number uint16
	at     int64
}

// duePing is the part of due that keeps the allocation alive. It rests while
// the session binds, since the relay could only answer ERROR 3.
func (s *Session) duePing(now int64, buf []byte) ([]byte, int64) {
	p := &s.ping
	if !s.bound.Load() || s.bind.active {
		return nil, never
	}
	if now < p.next {
		return nil, p.next
	}
	p.next = now + int64(s.cfg.PingPeriod)
	p.number++
	p.flight[p.number%pingsInFlight] = pingSent{open: true, number: p.number, at: now}
	s.counters.pings.Add(1)
	return proto.Ping{ID: s.own, Number: p.number}.Append(buf[:0]), now
}

// onEcho measures the round trip of a PING that came back, once.
func (s *Session) onEcho(now int64, number uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := &s.ping.flight[number%pingsInFlight]
	if !sent.open || sent.number != number {
		s.counters.unexpected.Add(1)
		return
	}
	sent.open = false
	s.counters.echoes.Add(1)
	if rtt := now - sent.at; rtt < int64(s.cfg.PingPeriod) || sent.at >= s.resumed.Load() {
		s.ping.sample(time.Duration(rtt)) // Others waited for a network that had stopped.
	}
}

// sample smooths with a weight of 1/8 for the newest, as TCP does (RFC 6298).
func (p *pinger) sample(rtt time.Duration) {
	p.newest = max(rtt, 1)
	if p.smoothed == 0 {
		p.smoothed = p.newest
		return
	}
	p.smoothed += (p.newest - p.smoothed) / 8
}
