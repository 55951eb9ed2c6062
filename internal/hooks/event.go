package hooks

import (
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// Type says what happened.
type Type string

// The types of events.
const (
	// Allocated: an allocation was reserved, for a host or for a player that joins.
	// It alone says whose the allocation is.
	Allocated Type = "allocated"
	// Bound: its player has come, or has come from another address.
	Bound Type = "bound"
	// Joined: a player was connected to its host; Allocation is the player's.
	Joined Type = "joined"
	// Left: that connection was closed; Allocation is who closed it.
	Left Type = "left"
	// Ended: the allocation is over, and its connections with it, without a Left
	// for each.
	Ended Type = "ended"
)

// Event is what webhooks are told.
type Event struct {
	// ID is the same whenever an event is sent again.
	ID   string    `json:"id"`
	Type Type      `json:"type"`
	Time time.Time `json:"time"`
	// Allocation is whom it is about, Peer the other side of Joined and Left, and
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
