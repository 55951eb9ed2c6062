package operator

import "time"

// Why is the response of /why/NAME: what happened to an allocation, live or ended, and what
// that means.
type Why struct {
	ID       string `json:"id"`
	Relay    string `json:"-"` // that answered, of a fleet
	Role     string `json:"role,omitempty"`
	JoinCode string `json:"join_code,omitempty"` // of a live host
	Player   string `json:"player,omitempty"`    // while it is live
	// Known: something has happened to it that is still known.
	Known bool `json:"known"`
	// Awaited: it is not live, and may come back after a restart of the relay.
	Awaited bool       `json:"awaited,omitempty"`
	Because string     `json:"because"` // a sentence
	Events  []WhyEvent `json:"events"`  // the oldest first
	// Players are those that joined a host lately, at most 100, the newest last.
	Players []WhyPlayer `json:"players,omitempty"`
}

type WhyPlayer struct {
	ID      string `json:"id"`
	Player  string `json:"player,omitempty"` // while it is live
	Because string `json:"because"`
}

type WhyEvent struct {
	// ID and Relay are those of the allocation, in a [ProjectTimeline]. ID is "" for a call that
	// was refused, and Relay if it is the one that answers.
	ID       string    `json:"id,omitempty"`
	Relay    string    `json:"relay,omitempty"`
	What     string    `json:"what"`
	Reason   string    `json:"reason,omitempty"`
	Peer     string    `json:"peer,omitempty"`
	Endpoint string    `json:"endpoint,omitempty"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Count    uint32    `json:"count"`
}

// ProjectTimeline is the response of /timeline: what happened to the allocations of a project
// lately, and which of its calls were refused.
type ProjectTimeline struct {
	Project string     `json:"project"`
	Events  []WhyEvent `json:"events"` // the newest first
	Missing []Missing  `json:"missing,omitempty"`
}
