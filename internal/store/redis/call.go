package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ferryrelay/ferry/alloc"
)

// errOpen is what calls fail with while the breaker is open.
var errOpen = fmt.Errorf("redisstore: the store has not answered lately and is not asked for a moment: %w", alloc.ErrStoreUnavailable)

// do has call ask the store, within the time-out and by leave of the breaker.
// A nil reply is no error. Any other error, also one that the server answered
// with, says that the store cannot be used, and comes back as ErrStoreUnavailable:
// no command here has an error for an answer.
func (s *Store) do(ctx context.Context, what string, call func(context.Context) error) error {
	leave, ok := s.breaker.enter(time.Now())
	if !ok {
		return errOpen
	}
	s.calls.Add(1)
	inner, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := call(inner)
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	v := answered
	switch {
	case err == nil:
	case ctx.Err() != nil:
		v = abandoned
	default:
		v = unanswered
	}
	if open, changed := s.breaker.leave(leave, v, time.Now()); changed {
		s.tell(open, err)
	}
	if err == nil {
		return nil
	}
	s.failed.Add(1)
	return fmt.Errorf("redisstore: %s: %w: %w", what, alloc.ErrStoreUnavailable, err)
}

// tell logs that the breaker has opened or closed.
func (s *Store) tell(open bool, err error) {
	if open {
		s.logger.Warn("store does not answer; calls that need it fail until it is back", "error", err)
		return
	}
	s.logger.Info("store answers again")
}

// run runs one script and returns what it returned.
func (s *Store) run(ctx context.Context, what string, sc *redis.Script, keys []string, args ...any) (reply any, err error) {
	err = s.do(ctx, what, func(ctx context.Context) error {
		reply, err = sc.Run(ctx, s.client, keys, args...).Result()
		return err
	})
	return reply, err
}

// number runs one script that returns a number.
func (s *Store) number(ctx context.Context, what string, sc *redis.Script, keys []string, args ...any) (int64, error) {
	reply, err := s.run(ctx, what, sc, keys, args...)
	if err != nil {
		return 0, err
	}
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

// runAll runs many scripts in one go and returns what each returned. A server
// that does not know a script, as after a restart, is sent those again in full.
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

// runInFull runs the scripts of all that have the given numbers, sending their
// text, and writes down what they returned.
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
