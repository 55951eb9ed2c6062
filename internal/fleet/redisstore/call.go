package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/trace"
)

// probeInterval is the longest time until the breaker lets the next call through, and
// half of it the shortest. Each process draws its own, so that processes which lost the
// store together do not return together.
const probeInterval = 400 * time.Millisecond

// errOpen is returned by calls while the breaker is open.
var errOpen = fmt.Errorf("redisstore: the store did not answer recent calls and is not asked for a moment: %w", alloc.ErrStoreUnavailable)

// errCallerGone is reported to the breaker for a call that its caller cancelled, which
// says nothing about the store.
var errCallerGone = errors.New("redisstore: the caller has cancelled")

// newBreaker returns a circuit breaker that opens after that many consecutive failures.
// While it is open one call at a time is let through, at intervals, and the first that
// succeeds closes it.
func (s *Store) newBreaker(failures uint32) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     jitter(probeInterval),
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
		IsExcluded:  func(err error) bool { return errors.Is(err, errCallerGone) },
		IsSuccessful: func(err error) bool {
			if err != nil {
				s.lastError = err
			}
			return err == nil
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case from == gobreaker.StateClosed:
				s.opened.Add(1)
				s.logger.Warn("the store does not answer; calls that need it fail until it is back", "error", s.lastError)
			case to == gobreaker.StateClosed:
				s.closed.Add(1)
				s.logger.Info("the store answers again")
			}
		},
	})
}

// isOpen reports whether the breaker is not closed.
func (s *Store) isOpen() bool { return s.breaker.State() != gobreaker.StateClosed }

// do runs call, as a span in a context that has one, within the timeout if the breaker
// permits it. redis.Nil is not an error. Any other error, including an error reply of the
// server, means that the store cannot be used, since no command here returns one otherwise.
// The result then wraps alloc.ErrStoreUnavailable.
func (s *Store) do(ctx context.Context, what string, call func(context.Context) error) error {
	ctx, span := trace.StartClient(ctx, what)
	span.SetString("db.system.name", "redis")
	err := s.guarded(ctx, what, call)
	span.End(err)
	return err
}

// guarded is do without its span.
func (s *Store) guarded(ctx context.Context, what string, call func(context.Context) error) error {
	done, err := s.breaker.Allow()
	if err != nil {
		s.refused.Add(1)
		return errOpen
	}
	s.calls.Add(1)
	inner, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err = s.Regions.check(inner); err == nil {
		err = call(inner)
	}
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	s.noteResult(err)
	if err == nil {
		done(nil)
		return nil
	}
	if ctx.Err() != nil {
		done(errCallerGone)
	} else {
		done(err)
	}
	s.failed.Add(1)
	return fmt.Errorf("redisstore: %s: %w: %w", what, alloc.ErrStoreUnavailable, err)
}

// jitter returns a random duration between d/2 and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// run runs one script and returns its result.
func (s *Store) run(ctx context.Context, what string, sc *redis.Script, keys []string, args ...any) (reply any, err error) {
	err = s.do(ctx, what, func(ctx context.Context) error {
		reply, err = sc.Run(ctx, s.client, keys, args...).Result()
		return err
	})
	return reply, err
}

// runReadOnly runs one script that writes nothing, as a user without the permission to
// write those keys may.
func (s *Store) runReadOnly(ctx context.Context, what string, sc *redis.Script, keys []string) (reply any, err error) {
	err = s.do(ctx, what, func(ctx context.Context) error {
		reply, err = sc.RunRO(ctx, s.client, keys).Result()
		return err
	})
	return reply, err
}

// number runs one script whose result is a number.
func (s *Store) number(ctx context.Context, what string, sc *redis.Script, keys []string, args ...any) (int64, error) {
	reply, err := s.run(ctx, what, sc, keys, args...)
	if err != nil {
		return 0, err
	}
	return s.parseNumber(reply)
}

func (s *Store) parseNumber(reply any) (int64, error) {
	n, ok := reply.(int64)
	if !ok {
		s.damaged.Add(1)
		return 0, errDamaged
	}
	return n, nil
}

// invocation is a script with its keys, which share a slot, and arguments.
type invocation struct {
	script *redis.Script
	keys   []string
	args   []any
}

// runAll runs scripts in one pipeline and returns their results. Scripts that the
// server does not know, as after a restart, are sent again with their text.
func (s *Store) runAll(ctx context.Context, what string, all []invocation) ([]any, error) {
	if len(all) == 0 {
		return nil, nil
	}
	replies := make([]any, len(all))
	err := s.do(ctx, what, func(ctx context.Context) error {
		var unknown []int
		cmds := make([]*redis.Cmd, len(all))
		_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, one := range all {
				cmds[i] = p.EvalSha(ctx, one.script.Hash(), one.keys, one.args...)
			}
			return nil
		}) // Each command has its own error.
		for i, cmd := range cmds {
			var err error
			if replies[i], err = cmd.Result(); redis.HasErrorPrefix(err, "NOSCRIPT") {
				unknown = append(unknown, i)
			} else if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
		}
		return s.runInFull(ctx, all, unknown, replies)
	})
	return replies, err
}

// runInFull runs the scripts with the given indexes, sends their text, and stores their
// results in replies.
func (s *Store) runInFull(ctx context.Context, all []invocation, numbers []int, replies []any) error {
	if len(numbers) == 0 {
		return nil
	}
	cmds := make([]*redis.Cmd, len(numbers))
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, n := range numbers {
			cmds[i] = all[n].script.Eval(ctx, p, all[n].keys, all[n].args...)
		}
		return nil
	})
	for i, n := range numbers {
		var err error
		if replies[n], err = cmds[i].Result(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}
