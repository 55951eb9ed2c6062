package rpc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// extraWait is the time after the deadline for which a relay waits for its own
	// reservation. It cannot end a reservation whose id it does not know.
	extraWait = 5 * time.Second
	// endTimeout bounds the end of an unused reservation. If the end fails, the
	// reservation expires unbound.
	endTimeout = 5 * time.Second
	maxBatch   = 64
)

type reservations struct {
	relay  placement.Relay
	logger *slog.Logger
	table  *attemptTable

	runCtx  context.Context
	kill    context.CancelFunc // cancels attempts
	running sync.WaitGroup     // attempts

	made, repeated, cancelled, ended atomic.Uint64
}

func newReservations(relay placement.Relay, logger *slog.Logger) *reservations {
	r := &reservations{relay: relay, logger: logger, table: newAttemptTable(maxRetained)}
	r.runCtx, r.kill = context.WithCancel(context.Background())
	return r
}

func (r *reservations) stop() {
	r.kill()
	r.running.Wait()
}

func reserving[Call, Request any](r *reservations, parse func(*Call) (Request, error),
	do func(context.Context, Request) (alloc.Reservation, error)) func(context.Context, request) (any, error) {
	return func(ctx context.Context, q request) (any, error) {
		in, err := parseBody(q.body, parse)
		if err != nil {
			return nil, err
		}
		return r.reserve(ctx, q, func(ctx context.Context) outcome {
			res, err := do(ctx, in)
			if err != nil {
				return outcome{err: err}
			}
			return outcome{res: &res}
		})
	}
}

// reserve makes a reservation, or waits until the deadline for the call with the same
// key that makes it.
func (r *reservations) reserve(ctx context.Context, q request, do func(context.Context) outcome) (any, error) {
	k, ok := parseKey(q.key)
	if !ok {
		return nil, malformed.withDetail("%s is not 32 hexadecimal digits in lower case", headerKey)
	}
	a, isNew, err := r.table.begin(k, q.digest())
	if err != nil {
		return nil, err
	}
	if isNew {
		r.running.Go(func() { r.attempt(k, a, q.deadline, do) })
	} else {
		r.repeated.Add(1)
	}
	o := r.await(ctx, a)
	if o.err != nil {
		return nil, o.err
	}
	return answerOf(o.res), nil
}

// await returns the outcome of an attempt, or an error at the deadline of ctx. A caller
// that has disconnected may repeat the call, so its attempt continues.
func (r *reservations) await(ctx context.Context, a *attempt) outcome {
	select {
	case <-a.done:
		return r.table.outcome(a)
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return r.table.abandon(a)
	}
	return outcome{err: unavailable.withDetail("the caller has disconnected")}
}

// attempt makes a reservation, even if its caller has stopped waiting.
func (r *reservations) attempt(k key, a *attempt, deadline time.Time, do func(context.Context) outcome) {
	ctx, cancel := context.WithDeadline(r.runCtx, deadline.Add(extraWait))
	defer cancel()
	late := func() bool { return !time.Now().Before(deadline) || r.runCtx.Err() != nil }
	o := outcome{err: unavailable.withDetail("the deadline has passed before the relay was asked")}
	if !late() {
		o = perform(ctx, do)
	}
	if o.res != nil {
		r.made.Add(1)
	}
	if !r.table.finish(k, a, o, late()) {
		return
	}
	if err := r.end(context.WithoutCancel(ctx), k, o.res.ID); err != nil {
		r.logger.Warn("ending an unused reservation failed; it expires unbound", "error", err)
	}
}

// perform calls the relay. It returns a panic as an error, since no HTTP server recovers panics of
// this goroutine.
func perform(ctx context.Context, do func(context.Context) outcome) (o outcome) {
	defer func() {
		if fault := recover(); fault != nil {
			o = outcome{err: fmt.Errorf("cluster: panic: %v\n%s", fault, debug.Stack())}
		}
	}()
	return do(ctx)
}

func (r *reservations) end(ctx context.Context, k key, id proto.AllocationID) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	err := r.relay.End(ctx, id)
	if err != nil && !errors.Is(err, alloc.ErrNotFound) {
		return err
	}
	r.table.markEnded(k)
	if err == nil {
		r.ended.Add(1)
	}
	return nil
}

// cancel ends the reservations of the keys, and refuses later calls with them. It may
// be repeated.
func (r *reservations) cancel(ctx context.Context, q request) (any, error) {
	var in cancelCall
	if err := decode(q.body, &in); err != nil {
		return nil, err
	}
	if len(in.Keys) > maxBatch {
		return nil, malformed.withDetail("more than %d keys", maxBatch)
	}
	keys := make([]key, len(in.Keys))
	for i, text := range in.Keys {
		var ok bool
		if keys[i], ok = parseKey(text); !ok {
			return nil, malformed.withDetail("keys[%d] is not 32 hexadecimal digits in lower case", i)
		}
	}
	var failed error
	for _, k := range keys {
		id, end := r.table.cancel(k)
		r.cancelled.Add(1)
		if end {
			failed = errors.Join(failed, r.end(ctx, k, id))
		}
	}
	return emptyAnswer{}, failed
}

const (
	// retainFor is the time for which an outcome is kept by its key. An API gives up
	// after 2 s and cancels within cancelFor, and an unbound reservation expires after
	// 10 s anyway.
	retainFor = 10 * time.Second
	// maxRunning bounds the reservations in progress. Further ones get the error
	// "busy", since they would only slow down an overloaded relay.
	maxRunning = 1024
	// maxRetained bounds the outcomes that are kept, below 30 MiB in all. Beyond it the
	// oldest is dropped early: at 5,000 reservations per second after 6 s, which is
	// three times as long as a caller repeats a call.
	maxRetained = 32768
)

type outcome struct {
	res *alloc.Reservation // nil: none
	err error
}

// attempt is one reservation, identified by its key. The lock of the attemptTable
// guards all fields but done.
type attempt struct {
	callDigest [sha256.Size]byte // digest of call and body; none if cancelledFirst
	done       chan struct{}     // closed when the outcome is there
	outcome
	id             proto.AllocationID // of the reservation, also once it was cancelled
	cancelled      bool
	overdue        bool // a caller got the error that the deadline had passed
	cancelledFirst bool // the cancellation arrived before the call
	ended          bool // no reservation is left to end
}

// attemptTable holds the outcomes of reservations by key, so that a call that is sent
// twice reserves once, and a cancelled reservation can be ended.
type attemptTable struct {
	start time.Time

	mu             sync.Mutex // guards the following fields and those of attempts; not held during calls
	running        int
	byKey          map[key]*attempt
	ring           []retained // of at most its length, oldest at head
	head, n        int
	forgottenEarly uint64 // dropped before they expired
}

// retained is an entry of the ring: a key, and the time since the start of the table until
// which its outcome is kept.
type retained struct {
	key   key
	until time.Duration
}

func newAttemptTable(most int) *attemptTable {
	return &attemptTable{start: time.Now(), byKey: make(map[key]*attempt), ring: make([]retained, most)}
}

// begin returns the attempt with that key, and whether it is new. The caller of begin
// then makes the reservation and calls finish.
func (m *attemptTable) begin(k key, digest [sha256.Size]byte) (a *attempt, isNew bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	if a, ok := m.byKey[k]; ok {
		switch {
		case a.cancelledFirst:
			return nil, false, cancelled.withDetail("the reservation was cancelled before it arrived")
		case a.callDigest != digest:
			return nil, false, keyReused.withDetail("the key was used for another call")
		}
		return a, false, nil
	}
	if m.running >= maxRunning {
		return nil, false, tooMany.withDetail("%d reservations are in progress", m.running)
	}
	m.running++
	a = &attempt{callDigest: digest, done: make(chan struct{})}
	m.byKey[k] = a
	return a, true, nil
}

// finish records the outcome of an attempt. It returns true if the reservation must be
// ended, because it was cancelled or made too late. Callers that wait for it then get
// an error.
func (m *attemptTable) finish(k key, a *attempt, o outcome, late bool) (end bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	if o.res != nil {
		a.id = o.res.ID
		end = late || a.overdue || a.cancelled
	}
	switch {
	case a.cancelled:
		o = outcome{err: cancelled.withDetail("the reservation was cancelled")}
	case end:
		a.cancelled = true // a later cancellation finds the reservation ended
		o = outcome{err: unavailable.withDetail("the reservation was made after its deadline, and ended")}
	}
	a.outcome = o
	a.ended = !end && o.res == nil
	close(a.done)
	m.retain(k)
	return end
}

// outcome returns the outcome of an attempt that is done. The reservation is immutable.
func (m *attemptTable) outcome(a *attempt) outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	return a.outcome
}

// abandon returns the outcome of an attempt whose caller has reached its deadline. If
// the attempt is not done, no caller gets its reservation later.
func (m *attemptTable) abandon(a *attempt) outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-a.done:
		return a.outcome
	default:
		a.overdue = true
		return outcome{err: unavailable.withDetail("the relay did not answer within the deadline")}
	}
}

// cancel ensures that no caller gets the reservation of the key, now or later. It
// returns the id of the reservation that must be ended, if there is one.
func (m *attemptTable) cancel(k key) (id proto.AllocationID, end bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	a, ok := m.byKey[k]
	if !ok {
		m.byKey[k] = &attempt{cancelled: true, cancelledFirst: true, ended: true}
		m.retain(k)
		return proto.AllocationID{}, false
	}
	a.cancelled = true
	if a.ended || a.id.IsZero() {
		return proto.AllocationID{}, false // or finish ends it
	}
	a.outcome = outcome{err: cancelled.withDetail("the reservation was cancelled")}
	return a.id, true
}

func (m *attemptTable) markEnded(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.byKey[k]; ok {
		a.ended = true
	}
}

// retain keeps an outcome for retainFor. The caller holds mu.
func (m *attemptTable) retain(k key) {
	if m.n == len(m.ring) {
		m.forgottenEarly++
		m.removeOldest()
	}
	m.ring[(m.head+m.n)%len(m.ring)] = retained{k, time.Since(m.start) + retainFor}
	m.n++
}

// expire removes expired outcomes. The caller holds mu.
func (m *attemptTable) expire() {
	now := time.Since(m.start)
	for m.n > 0 && m.ring[m.head].until <= now {
		m.removeOldest()
	}
}

// removeOldest removes the oldest outcome. The caller holds mu, and n > 0.
func (m *attemptTable) removeOldest() {
	delete(m.byKey, m.ring[m.head].key)
	m.ring[m.head] = retained{}
	m.head = (m.head + 1) % len(m.ring)
	m.n--
}

// sweep removes expired outcomes when there are no calls, because outcomes hold keys.
func (m *attemptTable) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
}

func (m *attemptTable) sizes() (running, remembered int, forgot uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running, m.n, m.forgottenEarly
}

// keyLen is the size of an idempotency key: 128 random bits, so that no two
// calls share one and no caller can guess another's.
const keyLen = 16

type key [keyLen]byte

func newKey() (k key) {
	_, _ = rand.Read(k[:]) // never fails (crypto/rand)
	return k
}

func (k key) String() string { return hex.EncodeToString(k[:]) }

// parseKey parses the output of key.String, and nothing else.
func parseKey(s string) (k key, ok bool) {
	ok = parseHex(s, k[:])
	return k, ok
}

func parseHex(s string, to []byte) bool {
	if len(s) != 2*len(to) {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	_, err := hex.Decode(to, []byte(s))
	return err == nil
}
