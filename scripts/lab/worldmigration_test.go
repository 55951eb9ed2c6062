//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

// worldSilence is after how long without a message a host counts as one that has left.
const worldSilence = 7 * time.Second

// departures are the ways in which a host leaves, and the longest time until each player is in
// the match of the next host. With -long a row that takes longer is red, as in make world.
var departures = map[string]time.Duration{
	"host leaves":  time.Second, // POST /v1/leave, and then it is silent
	"host closes":  time.Second, // CLOSE
	"host crashes": worldSilence + time.Second,
}

func (g *worldGame) leave() bool {
	old := g.host
	switch g.row.get(dimEvent) {
	case "host leaves":
		a, err := old.api()
		if err == nil {
			err = a.Leave(g.Context(), api.LeaveRequest{AllocationID: old.alloc.AllocationID, ConnectionData: old.alloc.ConnectionData})
		}
		if err != nil {
			g.fault("leave: %v", err)
			return false
		}
		old.stop()
	case "host closes":
		old.client.Leave()
	case "host crashes":
		old.stop()
	}
	return true
}

// migrate lets the host leave, and the players ask for its place, all at once. It reports
// whether one of them is the host then, and the others have joined it.
func (g *worldGame) migrate() bool {
	if !g.leave() {
		return false
	}
	ctx, cancel := context.WithTimeout(g.Context(), worldBack)
	defer cancel()
	var asking sync.WaitGroup
	errs := make([]error, len(g.players))
	for i, p := range g.players {
		asking.Go(func() { errs[i] = p.takePlace(ctx, g.code) })
	}
	asking.Wait()
	for i, p := range g.players {
		if errs[i] != nil {
			g.fault("%s in the migration: %v", p.name, errs[i])
			g.askWhy(p)
			return false
		}
	}
	return g.playOn()
}

// playOn has the players that have joined the one that is the host play with it. It reports
// whether there is one host.
func (g *worldGame) playOn() bool {
	i := slices.IndexFunc(g.players, func(p *worldClient) bool { return len(p.alloc.HostConnectionData) == 0 })
	if i < 0 {
		g.fault("no player is the host")
		return false
	}
	g.host, g.players = g.players[i], slices.Delete(slices.Clone(g.players), i, i+1)
	for _, p := range g.players {
		if len(p.alloc.HostConnectionData) == 0 {
			g.fault("two players are the host")
			return false
		}
		g.host.client.Meet(idOf(p.alloc))
		p.stop()
		if err := p.start(g.host.alloc); err != nil {
			g.fault("%s: %v", p.name, err)
			return false
		}
	}
	return true
}

// takePlace asks for the place of the host, as docs/games.md says, until the player is the bound
// host or has joined it.
func (c *worldClient) takePlace(ctx context.Context, code string) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	ticket, last := c.alloc.HostConnectionData, errors.New("no answer")
	for ; ctx.Err() == nil; pause(ctx, 250*time.Millisecond) {
		var next api.Allocation
		next, last = a.Migrate(ctx, api.MigrateRequest{JoinCode: code, HostConnectionData: ticket})
		if last == nil {
			if bound, err := c.tryHost(ctx, next); bound || err != nil {
				return err
			}
			continue
		}
		problem, ok := errors.AsType[*api.Problem](last)
		switch {
		case !ok || problem.Status == http.StatusServiceUnavailable || problem.Status == http.StatusTooManyRequests:
		case problem.Status != http.StatusConflict:
			return last
		case slices.ContainsFunc(problem.Details, func(d api.Detail) bool { return d.Key == api.DetailHost }):
			if next, last = a.Join(ctx, code); last == nil {
				c.alloc = next
				return nil
			}
		}
	}
	return last
}

// tryHost binds a reservation for the host's place. The client of the old match goes on unless that
// was in time.
func (c *worldClient) tryHost(ctx context.Context, next api.Allocation) (bound bool, err error) {
	alloc, client, stop := c.alloc, c.client, c.stop
	c.alloc = next
	if err := c.start(); err != nil {
		return false, err
	}
	if bound = c.isBound(ctx); bound {
		stop()
		return true, nil
	}
	c.stop()
	c.alloc, c.client, c.stop = alloc, client, stop
	return false, nil
}

func (c *worldClient) isBound(ctx context.Context) bool {
	for ; ctx.Err() == nil; pause(ctx, 5*time.Millisecond) {
		if bound, refused := c.client.Bound(); bound || refused {
			return bound && !refused
		}
	}
	return false
}
