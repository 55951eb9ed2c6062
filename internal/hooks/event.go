package hooks

import (
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// Type is the kind of an event.
type Type string

// The types of events.
const (
	// Allocated: an allocation was reserved, for a host or for a player that joins.
	// Only this event has the tenant and the player.
	Allocated Type = "allocated"
	// Bound: its client has bound it, for the first time or from another address.
	Bound Type = "bound"
	// Joined: a player was connected to its host; Allocation is the player's.
	Joined Type = "joined"
	// Left: that connection was closed; Allocation is the side that closed it.
	Left Type = "left"
	// Ended: the allocation has ended, and its connections too, without a Left for
	// each.
	Ended Type = "ended"
)

// Event is the body of a webhook.
type Event struct {
	// ID does not change when an event is sent again.
	ID   string    `json:"id"`
	Type Type      `json:"type"`
	Time time.Time `json:"time"`
	// Allocation is the subject, Peer the other side of Joined and Left, and
	// the host of a player's Allocated.
	Allocation string `json:"allocation"`
	Peer       string `json:"peer,omitempty"`
	Role       string `json:"role,omitempty"` // "host" or "joiner"
	// The following are those of Allocated.
	Project        string `json:"project,omitempty"`
	Environment    string `json:"environment,omitempty"`
	Player         string `json:"player,omitempty"`
	Kind           string `json:"kind,omitempty"`
	Region         string `json:"region,omitempty"`
	MaxConnections int    `json:"maxConnections,omitempty"`
	// Reason is that of Ended.
	Reason string `json:"reason,omitempty"`
}

// EventOf returns the event of a reservation.
func EventOf(r alloc.ReservationEvent) Event {
	q := r.Request
	e := Event{
		Type: Allocated, Allocation: r.ID.String(), Role: q.Role.String(),
		Project: q.Caller.Tenant.Project, Environment: q.Caller.Tenant.Environment,
		Player: q.Caller.Player, Kind: kindOf(q.Caller),
		Region: q.Region, MaxConnections: q.MaxConnections,
	}
	if !q.Host.IsZero() {
		e.Peer = q.Host.String()
	}
	return e
}
