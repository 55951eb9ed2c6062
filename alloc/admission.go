package alloc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/hook"
	"github.com/ferryrelay/ferry/proto"
)

// AdmissionRequest is a reservation that ServiceConfig.Admit decides about.
type AdmissionRequest struct {
	Caller Caller
	Role   Role
	// MaxConnections and Region are those of a host's request, with the default
	// region if it named none; zero for a joiner, and for a player that would take the place
	// of a host and gets that one's.
	MaxConnections int
	Region         string
	// Host is the host that the code of a joiner, or of a player that would take its place,
	// resolved to; zero for the host of a new match.
	Host proto.AllocationID
}

// ReservationEvent reports a reservation to ServiceConfig.OnReserve.
type ReservationEvent struct {
	Request AdmissionRequest
	ID      proto.AllocationID
}

func (s *Service) reserve(
	ctx context.Context, q AdmissionRequest, player PlayerHash, call func() (Reservation, error),
) (Reservation, error) {
	if err := ctx.Err(); err != nil {
		return Reservation{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	counts, reserved := s.outstanding != nil && !q.Caller.Server && q.Caller.Player != "", false
	player = q.Caller.limitHolder(player)
	if counts {
		if !s.outstanding.acquire(player, s.elapsed()) {
			return Reservation{}, ErrOutstanding
		}
		defer func() {
			if !reserved { // also if the relay panicked
				s.outstanding.cancel(player)
			}
		}()
	}
	res, err := s.admitAndReserve(ctx, q, call)
	if err != nil {
		return Reservation{}, err
	}
	reserved = true
	if counts {
		s.outstanding.confirm(player, res.ID, s.elapsed())
	}
	if s.hooks.onReserve != nil {
		_ = s.guard(&s.hooks.reserves, func() error { s.hooks.onReserve(ReservationEvent{Request: q, ID: res.ID}); return nil })
	}
	return res, nil
}

var errHookPanic = fmt.Errorf("%w: a hook panicked, see the log", ErrUnavailable)

type hooks struct {
	admit     func(context.Context, AdmissionRequest) error
	onReserve func(ReservationEvent)
	keepCode  func(context.Context, proto.AllocationID, string) error

	admits, reserves, keeps hook.Reporter
}

func newHooks(cfg *ServiceConfig) *hooks {
	const waits = "its caller waits for it"
	return &hooks{
		admit: cfg.Admit, onReserve: cfg.OnReserve, keepCode: cfg.KeepCode,
		admits:   hook.Reporter{Name: "Admit", Slow: slowAdmission, Effect: waits},
		reserves: hook.Reporter{Name: "OnReserve", Slow: slowHook, Effect: waits},
		keeps:    hook.Reporter{Name: "KeepCode", Slow: slowAdmission, Effect: waits},
	}
}

// From how long on a hook is slow: one that must not block, and one that may ask another process.
const (
	slowHook      = 100 * time.Millisecond
	slowAdmission = 2 * time.Second
)

func (s *Service) guard(h *hook.Reporter, call func() error) (err error) {
	began := s.elapsed()
	hook.Begin()
	defer func() {
		fault := recover()
		hook.End()
		if fault != nil {
			err = errHookPanic
		}
		now := s.elapsed()
		h.Done(s.log, now, now-began, fault)
	}()
	return call()
}

var inHook = hook.CallersOf((*Service).guard)

func (s *Service) admitAndReserve(
	ctx context.Context, q AdmissionRequest, call func() (Reservation, error),
) (Reservation, error) {
	if s.hooks.admit != nil {
		if err := s.guard(&s.hooks.admits, func() error { return s.hooks.admit(ctx, q) }); err != nil {
			if err != errHookPanic && ctx.Err() == nil && !isVerdict(err) {
				s.hooks.admits.Failed(s.log, s.elapsed(), err)
			}
			return Reservation{}, err
		}
	}
	return call()
}

// isVerdict reports whether an error of Admit says all. An ErrAdmissionUnavailable is of a program
// that logs its own errors.
func isVerdict(err error) bool {
	return errors.Is(err, ErrDenied) || errors.Is(err, ErrProjectQuota) ||
		errors.Is(err, ErrProjectInactive) || errors.Is(err, ErrAdmissionUnavailable)
}

// maxOutstandingTracked bounds the reservations tracked for all players together,
// below 9 MiB. When it is reached, the oldest one stops counting early: a player
// gets one reservation more than the limit, and no request is refused.
const maxOutstandingTracked = 65536

// outstandingLimit counts, by player, the allocations that were reserved and have
// not been bound, so that no player exhausts the relay with reservations. In a
// fleet the API processes receive no bind and no end events (one message per player
// would be needed), so each reservation counts for the whole bind timeout there.
type outstandingLimit struct {
	timeout time.Duration // how long a reservation counts

	mu            sync.Mutex           // guards the following fields; held during no call
	limit         int                  // per player
	countByPlayer map[PlayerHash]int32 // includes calls in progress
	playerByID    map[proto.AllocationID]PlayerHash
	queue         []expiry // ring buffer of fixed length, oldest at head
	head, n       int
}

// expiry is the time at which a reservation stops counting, since the service was
// created. All reservations count equally long, so the ring is ordered by time.
type expiry struct {
	id proto.AllocationID
	at time.Duration
}

func newOutstandingLimit(limit int, timeout time.Duration, capacity int) *outstandingLimit {
	return &outstandingLimit{
		limit: limit, timeout: timeout,
		countByPlayer: make(map[PlayerHash]int32),
		playerByID:    make(map[proto.AllocationID]PlayerHash),
		queue:         make([]expiry, capacity),
	}
}

// acquire reports false, and counts nothing, when the player is at its limit. A
// successful acquire is followed by confirm or cancel.
func (o *outstandingLimit) acquire(p PlayerHash, now time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.n > 0 && o.queue[o.head].at <= now {
		o.expireOldest()
	}
	if int(o.countByPlayer[p]) >= o.limit {
		return false
	}
	o.countByPlayer[p]++
	return true
}

func (o *outstandingLimit) setLimit(limit int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit = limit
}

func (o *outstandingLimit) cancel(p PlayerHash) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.decrement(p)
}

func (o *outstandingLimit) confirm(p PlayerHash, id proto.AllocationID, now time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == len(o.queue) {
		o.expireOldest()
	}
	o.queue[(o.head+o.n)%len(o.queue)] = expiry{id: id, at: now + o.timeout}
	o.n++
	o.playerByID[id] = p
}

func (o *outstandingLimit) release(id proto.AllocationID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releaseLocked(id)
}

// expireOldest removes the oldest reservation. The caller holds mu, and n > 0.
func (o *outstandingLimit) expireOldest() {
	o.releaseLocked(o.queue[o.head].id)
	o.head = (o.head + 1) % len(o.queue)
	o.n--
}

func (o *outstandingLimit) releaseLocked(id proto.AllocationID) {
	if p, ok := o.playerByID[id]; ok {
		delete(o.playerByID, id)
		o.decrement(p)
	}
}

func (o *outstandingLimit) decrement(p PlayerHash) {
	if o.countByPlayer[p] <= 1 {
		delete(o.countByPlayer, p)
		return
	}
	o.countByPlayer[p]--
}
