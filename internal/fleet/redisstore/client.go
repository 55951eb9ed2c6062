package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/ferryrelay/ferry/alloc"
)

// probeInterval is the longest time until the breaker lets the next call through, and
// half of it the shortest. Each process draws its own, so that processes which lost the
// store together do not return together.
const probeInterval = 400 * time.Millisecond

var errOpen = fmt.Errorf("redisstore: the store did not answer recent calls and is not asked for a moment: %w", alloc.ErrStoreUnavailable)

// errCallerGone is reported to the breaker for a call that its caller cancelled, which
// says nothing about the store.
var errCallerGone = errors.New("redisstore: the caller has cancelled")

// client makes the calls to the servers of a store: each within the timeout, and at once an error
// while the breaker is open.
type client struct {
	redis   servers
	timeout time.Duration
	logger  *slog.Logger
	regions *Regions
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	// lastError is the latest failure of a call. The lock of the breaker guards it.
	lastError error
	login     login

	calls, failed, refused, damaged atomic.Uint64
	opened, closed                  atomic.Uint64 // the breaker
}

// newClient returns a client for the servers at an address. It opens no connection.
func newClient(address Address, c *Config) *client {
	failures := uint32(failuresAlone)
	if address.Kind == Cluster {
		failures = failuresCluster
	}
	servers := connect(address, *c)
	made := &client{redis: servers, timeout: c.Timeout, logger: c.Logger, regions: newRegions(c, servers)}
	made.breaker = made.newBreaker(failures)
	return made
}

// newBreaker returns a circuit breaker that opens after that many consecutive failures.
// While it is open one call at a time is let through, at intervals, and the first that
// succeeds closes it.
func (c *client) newBreaker(failures uint32) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     jitter(probeInterval),
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= failures },
		IsExcluded:  func(err error) bool { return errors.Is(err, errCallerGone) },
		IsSuccessful: func(err error) bool {
			if err != nil {
				c.lastError = err
			}
			return err == nil
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case from == gobreaker.StateClosed:
				c.opened.Add(1)
				c.logger.Warn("the store does not answer; calls that need it fail until it is back", "error", c.lastError)
			case to == gobreaker.StateClosed:
				c.closed.Add(1)
				c.logger.Info("the store answers again")
			}
		},
	})
}

func (c *client) isOpen() bool { return c.breaker.State() != gobreaker.StateClosed }

// do runs call within the timeout if the breaker permits it. redis.Nil is not an error. Any
// other error, including an error reply of the server, means that the store cannot be used,
// since no command here returns one otherwise. The result then wraps alloc.ErrStoreUnavailable.
func (c *client) do(ctx context.Context, what string, call func(context.Context) error) error {
	done, err := c.breaker.Allow()
	if err != nil {
		c.refused.Add(1)
		return errOpen
	}
	c.calls.Add(1)
	inner, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err = c.regions.check(inner); err == nil {
		err = call(inner)
	}
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	c.noteResult(err)
	switch {
	case err == nil:
		done(nil)
		return nil
	case isWrongType(err): // The store answers.
		done(nil)
		return fmt.Errorf("%s: %w", what, c.reportDamaged())
	}
	if ctx.Err() != nil {
		done(errCallerGone)
	} else {
		done(err)
	}
	c.failed.Add(1)
	return fmt.Errorf("redisstore: %s: %w: %w", what, alloc.ErrStoreUnavailable, err)
}

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func (c *client) run(ctx context.Context, what string, sc *script, keys []string, args ...any) (reply any, err error) {
	err = c.do(ctx, what, func(ctx context.Context) error {
		reply, err = evaluate(ctx, c.redis, sc, keys, args...)
		return err
	})
	return reply, err
}

func isWrongType(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") }

// evaluate runs a script. If a key has another type than this package gives it, which would end that script and
// its repetitions, it removes the keys of the script first.
func evaluate(ctx context.Context, c servers, sc *script, keys []string, args ...any) (reply any, err error) {
	reply, err = c.run(ctx, sc, keys, args...)
	if isWrongType(err) && c.del(ctx, keys...) == nil {
		return c.run(ctx, sc, keys, args...)
	}
	return reply, err
}

// runReadOnly runs one script that writes nothing, as a user without the permission to
// write those keys may.
func (c *client) runReadOnly(ctx context.Context, what string, sc *script, keys []string) (reply any, err error) {
	err = c.do(ctx, what, func(ctx context.Context) error {
		reply, err = c.redis.runReadOnly(ctx, sc, keys)
		return err
	})
	return reply, err
}

func (c *client) number(ctx context.Context, what string, sc *script, keys []string, args ...any) (int64, error) {
	reply, err := c.run(ctx, what, sc, keys, args...)
	if err != nil {
		return 0, err
	}
	return c.parseNumber(reply)
}

func (c *client) parseNumber(reply any) (int64, error) {
	n, ok := reply.(int64)
	if !ok {
		return 0, c.reportDamaged()
	}
	return n, nil
}

func (c *client) text(ctx context.Context, what string, get func(context.Context) (string, error)) (text string, err error) {
	err = c.do(ctx, what, func(ctx context.Context) error {
		text, err = get(ctx)
		return err
	})
	return text, err
}

func (c *client) reportDamaged() error {
	c.damaged.Add(1)
	return errDamaged
}

// invocation is a script with its keys, which share a slot, and arguments.
type invocation struct {
	script *script
	keys   []string
	args   []any
}

// runAll runs scripts in one pipeline and returns their results. Scripts that the
// server does not know, as after a restart, are sent again with their text.
func (c *client) runAll(ctx context.Context, what string, all []invocation) ([]any, error) {
	if len(all) == 0 {
		return nil, nil
	}
	var replies []any
	err := c.do(ctx, what, func(ctx context.Context) error {
		var unknown []invocation
		var numbers []int
		var errs []error
		replies, errs = c.redis.pipeline(ctx, all, false)
		for i, err := range errs {
			if isWrongType(err) {
				replies[i], err = evaluate(ctx, c.redis, all[i].script, all[i].keys, all[i].args...)
			}
			switch {
			case redis.HasErrorPrefix(err, "NOSCRIPT"):
				unknown, numbers = append(unknown, all[i]), append(numbers, i)
			case err != nil && !errors.Is(err, redis.Nil):
				return err
			}
		}
		if len(unknown) == 0 {
			return nil
		}
		again, errs := c.redis.pipeline(ctx, unknown, true)
		for i, n := range numbers {
			if replies[n] = again[i]; errs[i] != nil && !errors.Is(errs[i], redis.Nil) {
				return errs[i]
			}
		}
		return nil
	})
	return replies, err
}

type login struct {
	accepted atomic.Bool           // a call has succeeded
	refusal  atomic.Pointer[error] // the last one before that; nil: none
}

func (c *client) noteResult(err error) {
	switch {
	case err == nil:
		if !c.login.accepted.Load() {
			c.login.accepted.Store(true)
		}
	case !c.login.accepted.Load() && isLoginError(err):
		refused := fmt.Errorf("the server refuses the user, the password or a right of the user: %w", err)
		if c.login.refusal.Swap(&refused) == nil {
			c.logger.Error("the store refuses the user of this process: check store and store_password_file", "error", err)
		}
	}
}

// isLoginError reports whether a server has refused the user of the connection. The client library
// wraps some of these errors in its own.
func isLoginError(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{"WRONGPASS ", "NOAUTH ", "NOPERM ", "ERR AUTH "}, func(code string) bool {
		return strings.Contains(text, code)
	})
}
