package hooks

import (
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
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
func EventOf(m alloc.Made) Event {
	e := Event{
		Type: Allocated, Allocation: m.ID.String(), Role: m.Role.String(),
		Project: m.Caller.Tenant.Project, Environment: m.Caller.Tenant.Environment,
		Player: m.Caller.Player, Kind: kindOf(m.Caller),
		Region: m.Region, MaxConnections: m.MaxConnections,
	}
	if m.Host != (proto.AllocationID{}) {
		e.Peer = m.Host.String()
	}
	return e
}
