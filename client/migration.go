package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

// ErrMatchOver is Migrate for a match that no player can go on with: its host left too long
// ago, its join code is gone, or the server has no migrations.
var ErrMatchOver = errors.New("client: the match is over")

// MigrationConfig configures Migrate.
type MigrationConfig struct {
	// API is the service that the player joined by. Required.
	API *api.Client
	// Code is the join code of the match. Required.
	Code string
	// Ticket is the player's own, with which its session still runs: the relay gives the
	// host's place only to a player that is there. Required.
	Ticket Ticket
	// Delay is how long this player lets others go first: less for preferred hosts.
	Delay time.Duration
	// Retry is the time between calls, a quarter more or less, while the wait is at most a
	// second as far as the server knows; it is a second when that is longer. 0 means 250
	// ms. The server's limit is 60 calls a minute.
	Retry time.Duration
}

func (c MigrationConfig) check() error {
	switch {
	case c.API == nil || c.Code == "":
		return fmt.Errorf("%w: a migration needs API and Code", ErrConfig)
	case len(c.Ticket.HostConnectionData) == 0:
		return fmt.Errorf("%w: a host takes the place of no host", ErrConfig)
	case c.Delay < 0 || c.Retry < 0:
		return fmt.Errorf("%w: a migration has a negative time", ErrConfig)
	}
	return c.Ticket.check()
}

// Migrate goes on with a match whose host has left. All its players call it. It returns the
// ticket of the player's next session: a host's, without HostConnectionData, or that of a
// joiner of the next host. Bind it at once, before the session with the old ticket is closed:
// a host's ticket that is not bound within 2 s goes to the next player that asks. Its Bind then
// ends with [EndedError], and the player calls Migrate again, with the old ticket. The server must
// permit it (setting host_migration of Ferry).
//
// While the relay still waits for the host, Migrate asks again until ctx ends: a host that
// crashed counts as one that has left after some seconds of silence.
//
// Errors: ErrMatchOver, ErrConfig, ctx.Err(), and *api.Problem for a caller that the server
// refuses, and api.ErrAnswer.
func Migrate(ctx context.Context, cfg MigrationConfig) (Ticket, error) {
	if err := cfg.check(); err != nil {
		return Ticket{}, err
	}
	if err := sleep(ctx, cfg.Delay); err != nil {
		return Ticket{}, err
	}
	for {
		t, wait, err := cfg.try(ctx)
		if err != nil || wait == 0 {
			return t, err
		}
		if err := sleep(ctx, wait); err != nil {
			return Ticket{}, err
		}
	}
}

// try returns the time to wait if there is no next host and no free place yet.
func (c *MigrationConfig) try(ctx context.Context) (t Ticket, wait time.Duration, err error) {
	a, err := c.API.Migrate(ctx, api.MigrateRequest{JoinCode: c.Code, HostConnectionData: c.Ticket.HostConnectionData})
	if err == nil {
		t, err = TicketFrom(a)
		return t, 0, err
	}
	var p *api.Problem
	switch {
	case errors.Is(err, api.ErrAnswer):
		return Ticket{}, 0, err
	case !errors.As(err, &p):
		return Ticket{}, c.wait(nil), ctx.Err()
	case p.Status == http.StatusConflict && !hasDetail(p, api.DetailHost), mayRepeat(p):
		return Ticket{}, c.wait(p), nil
	case p.Code == api.CodeJoinCodeNotFound || p.Code == api.StatusCode(http.StatusNotFound):
		return Ticket{}, 0, fmt.Errorf("%w: %w", ErrMatchOver, err)
	case p.Status != http.StatusConflict && p.Code != api.CodeAllocationNotFound:
		return Ticket{}, 0, err
	}
	// The match has a host, or this player may not take the place.
	t, err = Redeem(ctx, c.API, c.Code)
	switch {
	case err == nil || errors.Is(err, ErrConfig) || errors.Is(err, api.ErrAnswer):
		return t, 0, err
	case !errors.As(err, &p):
		return Ticket{}, c.wait(nil), ctx.Err()
	case p.Status == http.StatusConflict || mayRepeat(p):
		return Ticket{}, c.wait(p), nil
	case p.Code == api.CodeJoinCodeNotFound:
		return Ticket{}, 0, fmt.Errorf("%w: %w", ErrMatchOver, err)
	}
	return Ticket{}, 0, err
}

func mayRepeat(p *api.Problem) bool {
	return p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests
}

// longestWait is the longest time between calls while another player may become the host, or
// the host may say that it leaves, at any moment.
const longestWait = time.Second

func (c *MigrationConfig) wait(p *api.Problem) time.Duration {
	retry := c.Retry
	if retry == 0 {
		retry = 250 * time.Millisecond
	}
	switch {
	case p == nil:
	case mayRepeat(p):
		retry = max(retry, p.RetryAfter)
	case p.RetryAfter > longestWait:
		retry = max(retry, longestWait)
	}
	return retry*3/4 + rand.N(retry/2+1)
}

func hasDetail(p *api.Problem, key string) bool {
	return slices.ContainsFunc(p.Details, func(d api.Detail) bool { return d.Key == key })
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
