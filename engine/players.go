package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// PlayerLimits limit the live allocations of one player at this relay: the same subject of an
// issuer's token, or the same name that a backend gives. The holders of a static or a server token
// may be many, and have no such limit. Zero means the default, negative no limit.
type PlayerLimits struct {
	// Hosts is how many hosts a player has at once. Default 4.
	Hosts int
	// Joiners is how many joiners a player has at once. Default 8.
	Joiners int
	// JoinersPerHost is how many of them a player has at one host. Default 4.
	JoinersPerHost int
	// Seats is how many seats a player's hosts take together, see [Config].MaxSeats. Default:
	// those of four hosts with [Config].MaxConnections each.
	Seats int
}

type playerLimit uint8

const (
	playerHosts playerLimit = iota
	playerJoiners
	playerSeats
	playerJoinersPerHost
	numPlayerLimits
)

var playerLimitNames = [numPlayerLimits]string{"hosts", "joiners", "seats", "joiners_per_host"}

// maxPlayerLimit is more than any relay holds.
const maxPlayerLimit = 1 << 26

func (l PlayerLimits) withDefaults(maxConnections int, unlimited bool) PlayerLimits {
	for _, f := range []struct {
		value     *int
		otherwise int
	}{
		{&l.Hosts, 4}, {&l.Joiners, 8},
		{&l.JoinersPerHost, 4}, {&l.Seats, 4 * (maxConnections + 1)},
	} {
		*f.value = cmp.Or(*f.value, f.otherwise)
		if unlimited || *f.value < 0 {
			*f.value = maxMaxSeats
		}
	}
	return l
}

func (l PlayerLimits) validate() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"Hosts", l.Hosts, maxPlayerLimit}, {"Joiners", l.Joiners, maxPlayerLimit},
		{"JoinersPerHost", l.JoinersPerHost, maxPlayerLimit}, {"Seats", l.Seats, maxMaxSeats},
	} {
		if f.value > f.max {
			return fmt.Errorf("engine: PlayerLimits.%s is %d, want at most %d", f.name, f.value, f.max)
		}
	}
	return nil
}

// SetPlayerLimits changes [Config].PlayerLimits for later reservations. Errors: an invalid field,
// and those of every call, see [Server].
func (s *Server) SetPlayerLimits(ctx context.Context, l PlayerLimits) error {
	if err := l.validate(); err != nil {
		return err
	}
	l = l.withDefaults(s.cfg.MaxConnections, s.cfg.Unlimited)
	return s.onControl(ctx, func(c *control) error { c.players.limits = l; return nil })
}

// playerSilence is the idle limit of a host with players, so that nothing yields which its player
// uses.
const playerSilence = 10_000 / table.TickMillis

// players belongs to control; the atomic fields may be read by any goroutine.
type players struct {
	limits PlayerLimits
	// byPlayer has no pointers: the allocations of a player form a list through table.Account.
	byPlayer map[alloc.PlayerHash]playerUse

	refused   [numPlayerLimits]atomic.Uint64
	replaced  atomic.Uint64 // allocations that yielded to their player's next one
	noSession atomic.Uint64 // reservations for which Records have no room
}

type playerUse struct {
	newest         uint32 // slot+1 of the allocation that was added last
	hosts, joiners uint32
	seats          int64
}

func newPlayers() players {
	return players{
		limits:   PlayerLimits{}.withDefaults(0, true),
		byPlayer: make(map[alloc.PlayerHash]playerUse),
	}
}

// fits returns the limit if the player may have no more. It has atHost joiners at the host.
func (p *players) fits(u playerUse, role alloc.Role, seats int64, atHost int) (playerLimit, bool) {
	switch {
	case role != alloc.RoleHost && atHost >= p.limits.JoinersPerHost:
		return playerJoinersPerHost, false
	case role != alloc.RoleHost:
		return playerJoiners, int64(u.joiners) < int64(p.limits.Joiners)
	case int64(u.hosts) >= int64(p.limits.Hosts):
		return playerHosts, false
	}
	return playerSeats, u.seats+seats <= int64(p.limits.Seats)
}

func (c *control) addToPlayer(h table.Handle) {
	c.changePlayer(h, func(u *playerUse, a *table.Account) {
		a.NextOfPlayer, a.PrevOfPlayer = u.newest, 0
		if u.newest != 0 {
			c.shared.table.AccountAt(u.newest - 1).PrevOfPlayer = h.Slot() + 1
		}
		u.newest = h.Slot() + 1
	}, 1)
}

func (c *control) removeFromPlayer(h table.Handle) {
	c.changePlayer(h, func(u *playerUse, a *table.Account) {
		if a.NextOfPlayer != 0 {
			c.shared.table.AccountAt(a.NextOfPlayer - 1).PrevOfPlayer = a.PrevOfPlayer
		}
		if a.PrevOfPlayer != 0 {
			c.shared.table.AccountAt(a.PrevOfPlayer - 1).NextOfPlayer = a.NextOfPlayer
		} else {
			u.newest = a.NextOfPlayer
		}
	}, -1)
}

func (c *control) changePlayer(h table.Handle, link func(*playerUse, *table.Account), by int) {
	e, ok := c.shared.table.At(h)
	if !ok || !e.Is(table.Individual) {
		return
	}
	a := c.shared.table.Account(h)
	player := alloc.PlayerHash(c.shared.table.Player(h))
	u := c.players.byPlayer[player]
	link(&u, a)
	if e.Role == table.RoleHost {
		u.hosts += uint32(by)
		u.seats += int64(by) * c.seatsOf(h)
	} else {
		u.joiners += uint32(by)
	}
	if u.newest == 0 {
		delete(c.players.byPlayer, player)
		return
	}
	c.players.byPlayer[player] = u
}

// ownAllocation is one of the player that reserves.
type ownAllocation struct {
	h      table.Handle
	atHost bool // of the reservation
	yields bool // its client was never there, is silent or has gone
	heard  table.Tick
}

// ownAllocations returns those of the player and the role of m, those that were silent for longest
// first, and the newest.
func (c *control) ownAllocations(m *claims, now int64) (all []ownAllocation, newest proto.AllocationID) {
	for slot := c.players.byPlayer[m.player].newest; slot != 0; slot = c.shared.table.AccountAt(slot - 1).NextOfPlayer {
		h := c.shared.table.HandleAt(slot - 1)
		e, _ := c.shared.table.At(h)
		if e.Role != table.Role(m.role) {
			continue
		}
		if newest.IsZero() {
			newest = e.ID
		}
		a := ownAllocation{h: h, atHost: c.shared.table.Account(h).Match == m.match}
		a.heard, _ = c.shared.table.LastSeen(h)
		switch {
		case !e.Is(table.EverBound):
			a.yields = true // Its player calls again, and so does not wait for it.
		case !e.Endpoint.IsZero() && !c.isOpen(e.Endpoint):
			a.heard, a.yields = 0, true
		default: // While expiry pauses, all seem silent since the fault may be the relay's.
			a.yields = !c.pause.active && tick(now) > c.pause.extend(a.heard, playerSilence)
		}
		all = append(all, a)
	}
	slices.Reverse(all) // The oldest first, of those that were silent for equally long.
	slices.SortStableFunc(all, func(a, b ownAllocation) int { return int(a.heard) - int(b.heard) })
	return all, newest
}

// yieldingAllocations returns those of the player that were silent for longest, each unbound or for
// playerSilence at least, and as many as must end for a new one; an alloc.ErrPlayerLimit if these are
// too few.
func (c *control) yieldingAllocations(m *claims, now int64) (out []table.Handle, err error) {
	if !m.individual {
		return nil, nil
	}
	use, seats := c.players.byPlayer[m.player], 1+int64(m.maxConnections)
	atHost := int(use.joiners) // at most
	if _, ok := c.players.fits(use, m.role, seats, atHost); ok {
		return nil, nil
	}
	own, newest := c.ownAllocations(m, now)
	atHost = 0
	for _, a := range own {
		if a.atHost {
			atHost++
		}
	}
	limit, ok := c.players.fits(use, m.role, seats, atHost)
	for !ok {
		i := slices.IndexFunc(own, func(a ownAllocation) bool { return a.yields && (a.atHost || limit != playerJoinersPerHost) })
		if i < 0 {
			return nil, c.refusePlayer(m, limit, newest)
		}
		a := own[i]
		own = slices.Delete(own, i, i+1)
		out = append(out, a.h)
		if a.atHost {
			atHost--
		}
		if m.role == alloc.RoleHost {
			use.hosts--
			use.seats -= c.seatsOf(a.h)
		} else {
			use.joiners--
		}
		limit, ok = c.players.fits(use, m.role, seats, atHost)
	}
	return out, nil
}

func (c *control) refusePlayer(m *claims, limit playerLimit, newest proto.AllocationID) error {
	c.players.refused[limit].Add(1)
	err := alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: playerLimitNames[limit]}
	if c.hooks.Private.OnPlayerLimit != nil {
		event := privateapi.PlayerLimitEvent{Newest: newest, Limit: err.Reason}
		if m.role == alloc.RoleJoiner {
			event.Host = m.match
		}
		c.hooks.Private.OnPlayerLimit(event)
	}
	return err
}

func (c *control) replaceAllocations(old []table.Handle) {
	for _, h := range old {
		c.players.replaced.Add(1)
		c.end(h, EndReplaced)
	}
}

func ownerOf(tenant uint64, player alloc.PlayerHash, individual bool, id proto.AllocationID) driver.Owner {
	o := driver.Owner{Project: uint32(tenant ^ tenant>>32), Player: binary.LittleEndian.Uint32(id[:])}
	if individual {
		o.Player = binary.LittleEndian.Uint32(player[:])
	}
	return o
}

// hasSessionRoom: a player that will not get a session learns of it here, and not by silence.
func (c *control) hasSessionRoom(m *claims) bool {
	if c.records == nil || c.records.HasRoom(ownerOf(m.tenant, m.player, m.individual, m.id)) {
		return true
	}
	c.players.noSession.Add(1)
	return false
}
