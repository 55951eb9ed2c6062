package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// patience is how much longer than its caller a relay waits for its own
	// reservation. What is not waited for is not known, and cannot be ended.
	patience = 5 * time.Second
	// endWithin bounds the end of a reservation that nobody has. If it fails, the
	// reservation lapses as one that nobody binds.
	endWithin = 5 * time.Second
	// maxBatch bounds the keys in one cancellation.
	maxBatch = 64
)

func outcomeOf(res alloc.Reservation, err error) outcome {
	if err != nil {
		return outcome{err: err}
	}
	return outcome{res: &res}
}

// reserve makes a reservation, or waits for the call with the same key that
// does, until the deadline.
func (s *Server) reserve(ctx context.Context, q query, ask func(context.Context) outcome) (any, error) {
	k, ok := parseKey(q.key)
	if !ok {
		return nil, malformed.because("%s is not 32 hexadecimal digits in lower case", headerKey)
	}
	a, isNew, err := s.memory.begin(k, q.digest(), s.since())
	if err != nil {
		return nil, err
	}
	if isNew {
		s.attempts.Go(func() { s.attempt(k, a, q.due, ask) })
	} else {
		s.counts.repeated.Add(1)
	}
	o := s.await(ctx, a)
	if o.err != nil {
		return nil, o.err
	}
	return answerOf(o.res), nil
}

// await returns what becomes of an attempt until the deadline of ctx. A caller
// that has gone before may be sending the call anew, so its attempt goes on.
func (s *Server) await(ctx context.Context, a *attempt) outcome {
	select {
	case <-a.done:
		return s.memory.outcome(a)
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return s.memory.giveUp(a)
	}
	return outcome{err: unavailable.because("the caller has gone")}
}

// attempt makes a reservation, whoever still waits for it.
func (s *Server) attempt(k key, a *attempt, due time.Time, ask func(context.Context) outcome) {
	ctx, cancel := context.WithDeadline(s.life, due.Add(patience))
	defer cancel()
	late := func() bool { return !time.Now().Before(due) || s.life.Err() != nil }
	o := outcome{err: unavailable.because("the deadline has passed before the relay was asked")}
	if !late() {
		o = guarded(ctx, ask)
	}
	if o.res != nil {
		s.counts.reserved.Add(1)
	}
	if !s.memory.settle(k, a, o, late(), s.since()) {
		return
	}
	if err := s.end(context.WithoutCancel(ctx), k, o.res.ID); err != nil {
		s.logger.Warn("a reservation that nobody has could not be ended, and lapses", "error", err)
	}
}

// guarded asks the relay. A fault there must not end the process: there is no
// HTTP server around this goroutine that would catch it.
func guarded(ctx context.Context, ask func(context.Context) outcome) (o outcome) {
	defer func() {
		if fault := recover(); fault != nil {
			o = outcome{err: fmt.Errorf("cluster: panic: %v\n%s", fault, debug.Stack())}
		}
	}()
	return ask(ctx)
}

// end ends the reservation of a cancelled key.
func (s *Server) end(ctx context.Context, k key, id proto.AllocationID) error {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	err := s.relay.End(ctx, id)
	if err != nil && !errors.Is(err, alloc.ErrNotFound) {
		return err
	}
	s.memory.gone(k)
	if err == nil {
		s.counts.ended.Add(1)
	}
	return nil
}

// cancel ends the reservations that the keys have made, and refuses those that
// they would make. Cancelling again does no harm.
func (s *Server) cancel(ctx context.Context, q query) (any, error) {
	var in cancelCall
	if err := decode(q.body, &in); err != nil {
		return nil, err
	}
	if len(in.Keys) > maxBatch {
		return nil, malformed.because("more than %d keys", maxBatch)
	}
	keys := make([]key, len(in.Keys))
	for i, text := range in.Keys {
		var ok bool
		if keys[i], ok = parseKey(text); !ok {
			return nil, malformed.because("keys[%d] is not 32 hexadecimal digits in lower case", i)
		}
	}
	var failed error
	for _, k := range keys {
		id, end := s.memory.cancel(k, s.since())
		s.counts.cancelled.Add(1)
		if end {
			failed = errors.Join(failed, s.end(ctx, k, id))
		}
	}
	return emptyAnswer{}, failed
}
