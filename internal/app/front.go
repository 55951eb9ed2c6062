package app

import (
	"context"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/fleet"
)

const (
	// wakeWithin is how long an API process that starts waits for the store before
	// it lets callers in all the same.
	wakeWithin = 5 * time.Second
	// wakeEvery is the time between two looks.
	wakeEvery = 20 * time.Millisecond
)

// front is what an API process has instead of a relay: a fleet of them. Its
// fields are fixed by buildFront.
type front struct {
	app    *App
	fleet  *fleet.Fleet
	dialer *cluster.Dialer
}

// buildFront makes the Allocations service of a fleet.
func (a *App) buildFront() (err error) {
	c, f := &a.opts.Config, &front{app: a}
	f.dialer, err = cluster.NewDialer(cluster.DialerConfig{Files: clusterFiles(c), Logger: a.opts.Logger})
	if err != nil {
		return err
	}
	a.players.leases.store = a.store
	defaults, hints := regionsOf(c)
	f.fleet, err = fleet.New(fleet.Config{
		Registry: a.store, Directory: a.store, Dialer: f.dialer,
		Defaults: defaults, Hints: hints, Logger: a.opts.Logger,
	})
	if err != nil {
		return err
	}
	a.service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: f.fleet, Store: f.fleet.Codes(), LiveRegions: f.fleet.Regions, MaxConnections: c.MaxConnections,
		MaxOutstanding: c.MaxOutstanding, BindTimeout: c.BindTimeout,
		KeepCode: f.fleet.KeepCode, Admit: a.players.admit, OnReserve: a.players.reserved,
	})
	if err != nil {
		return err
	}
	a.front = f
	a.parts = slices.Insert(a.parts, len(a.parts)-1, // The API's port ends before them.
		part{"dialer", f.dialer.Run, func() error { return nil }},
		part{"fleet", f.fleet.Run, func() error { return nil }})
	return nil
}

// regionsOf returns where hosts go that name no region.
func regionsOf(c *config.Config) (defaults map[string]string, hints []fleet.Hint) {
	defaults = make(map[string]string)
	for _, d := range c.RegionDefaults {
		defaults[d.Project] = d.Region
	}
	for _, h := range c.RegionHints {
		hints = append(hints, fleet.Hint{Prefix: h.Network.Prefix, Region: h.Region})
	}
	return defaults, hints
}

// wake waits until the fleet is known, but not for long: without its store an API
// process answers 503, call by call, and stays ready. If all of them were taken
// out at once whenever the store is away, callers would meet a load balancer's
// error in place of the API's, and nobody when it is back.
func (f *front) wake(ctx context.Context) bool {
	ticker := time.NewTicker(wakeEvery)
	defer ticker.Stop()
	began := time.Now()
	for {
		err := f.fleet.Ready()
		if err == nil {
			return true
		}
		if time.Since(began) > wakeWithin {
			f.app.opts.Logger.Warn("the store does not answer: callers are told to come again", "error", err)
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// nodes returns the relays as this process sees them.
func (f *front) nodes() (all []admin.Node) {
	for _, c := range f.fleet.Nodes() {
		n := admin.Node{
			ID: c.Relay.String(), Role: Relay.String(), Region: c.Region, Version: c.Version,
			State: stateOf(&c), API: c.Control,
			Allocations: c.Players, Bound: c.Players, Seats: c.Taken, MaxSeats: c.Seats,
		}
		for _, e := range c.Endpoints {
			if e.ConnectionType == "udp" {
				n.UDP = append(n.UDP, net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))))
			}
		}
		all = append(all, n)
	}
	return all
}

func stateOf(c *fleet.Candidate) string {
	switch {
	case c.Age > fleet.DeadAfter:
		return "dead"
	case c.Draining:
		return "draining"
	case c.Suspect:
		return "suspect"
	}
	return "ready"
}
