package history

import (
	"context"
	"encoding/hex"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	// maxAccounts bounds the memory of what players have used: with names of 56 bytes some 3 MB.
	maxAccounts = 10_000
	// evictionSample is among how many accounts the smallest is found that another player's
	// replaces. One of the thousand largest is the smallest of eight once in ten million times.
	evictionSample = 8
	// maxOtherTenants bounds the sums of the others.
	maxOtherTenants = 1_000
)

// account is what a player has used with allocations that have ended.
type account struct {
	Tenant alloc.Tenant
	Name   string // for display
	operator.PlayerCounts
}

// accounts hold what players have used in this run, and in those that were upgraded to it. Any
// goroutine may call the methods.
type accounts struct {
	mu       sync.Mutex // guards what follows
	since    time.Time
	byPlayer map[alloc.PlayerHash]account
	// others are the sums of players without an account, by tenant; those of the zero tenant are of
	// tenants beyond maxOtherTenants.
	others map[alloc.Tenant]operator.PlayerCounts
}

func newAccounts(now time.Time) *accounts {
	return &accounts{since: now, byPlayer: map[alloc.PlayerHash]account{}, others: map[alloc.Tenant]operator.PlayerCounts{}}
}

// add counts what a player has used. A player without a name is one of the others.
func (a *accounts) add(player alloc.PlayerHash, used account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	have, known := a.byPlayer[player]
	switch {
	case known:
		used.Name = have.Name
		used.Add(have.PlayerCounts)
	case used.Name == "":
		a.addOthers(used)
		return
	case len(a.byPlayer) == maxAccounts:
		a.evict()
	}
	a.byPlayer[player] = used
}

// addOthers and evict are called with the lock held.
func (a *accounts) addOthers(used account) {
	sum, known := a.others[used.Tenant]
	if !known && len(a.others) >= maxOtherTenants {
		used.Tenant = alloc.Tenant{}
		sum = a.others[used.Tenant]
	}
	sum.Add(used.PlayerCounts)
	a.others[used.Tenant] = sum
}

// evict adds the account of the sample that has the fewest bytes to the others.
func (a *accounts) evict() {
	var smallest alloc.PlayerHash
	n := 0
	for player, x := range a.byPlayer { // in random order
		if n == 0 || x.Bytes < a.byPlayer[smallest].Bytes {
			smallest = player
		}
		if n++; n == evictionSample {
			break
		}
	}
	a.addOthers(a.byPlayer[smallest])
	delete(a.byPlayer, smallest)
}

type kept struct {
	Since    time.Time
	ByPlayer map[alloc.PlayerHash]account
	Others   map[alloc.Tenant]operator.PlayerCounts
}

func (a *accounts) all() kept {
	a.mu.Lock()
	defer a.mu.Unlock()
	return kept{a.since, maps.Clone(a.byPlayer), maps.Clone(a.others)}
}

func (a *accounts) restore(before kept) {
	for player, used := range before.ByPlayer {
		a.add(player, used)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for tenant, used := range before.Others {
		a.addOthers(account{Tenant: tenant, PlayerCounts: used})
	}
	if !before.Since.IsZero() {
		a.since = before.Since
	}
}

func (h *History) countEnd(e engine.EndEvent) {
	if e.Player != (alloc.PlayerHash{}) { // Else it was of an earlier run, and did not come back.
		h.accounts.add(e.Player, account{e.Tenant, h.PlayerOf(e.ID), countsOf(e.EverBound, e.Age, e.SentDatagrams, e.SentBytes)})
	}
}

func countsOf(bound bool, age time.Duration, datagrams, bytes uint64) operator.PlayerCounts {
	c := operator.PlayerCounts{Allocations: 1, Datagrams: datagrams, Bytes: bytes}
	if bound {
		c.PlayerSeconds = age.Seconds()
	}
	return c
}

// PlayerUsage returns what the players of a project and environment have used since a time, in no
// order; empty: of any. Those without an account of their own are summed. An allocation that ends during
// the call may be missing. Errors: those of engine.Server.Allocations.
func (h *History) PlayerUsage(ctx context.Context, project, environment string) (operator.PlayersUsage, error) {
	before := h.accounts.all()
	matches := func(t alloc.Tenant) bool {
		return (project == "" || t.Project == project) && (environment == "" || t.Environment == environment)
	}
	var others operator.PlayerCounts
	for tenant, used := range before.Others {
		if matches(tenant) {
			others.Add(used)
		}
	}
	_, err := EachAllocation(ctx, h.cfg.Relay, engine.Filter{Project: project}, math.MaxInt, func(a engine.Allocation) {
		if !matches(a.Name) {
			return
		}
		used := countsOf(a.EverBound, a.Age, a.SentDatagrams, a.SentBytes)
		used.Live = 1
		x, known := before.ByPlayer[a.Player]
		if !known {
			x = account{Tenant: a.Name, Name: h.PlayerOf(a.ID)}
		}
		if x.Name == "" {
			others.Add(used)
			return
		}
		x.Add(used)
		before.ByPlayer[a.Player] = x
	})
	sum := operator.PlayersUsage{Since: before.Since, Others: others}
	for player, x := range before.ByPlayer {
		if matches(x.Tenant) {
			sum.Players = append(sum.Players, operator.PlayerUsage{
				Player: x.Name, Digest: hex.EncodeToString(player[:]), Project: x.Tenant.Project, Environment: x.Tenant.Environment,
				PlayerCounts: x.PlayerCounts,
			})
		}
	}
	return sum, err
}
