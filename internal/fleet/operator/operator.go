// Package operator has what operators see and do. The admin pages, the calls of an API process to
// its relays, ferry ctl and the console share these types; their JSON is that of the admin API. A
// drain is configured by engine.DrainConfig everywhere.
package operator

import (
	"errors"
	"net/netip"
	"strings"
	"time"
)

// ErrFinal is the error of an attempt to undo a drain that a signal began: the sender of the signal
// expects the process to end.
var ErrFinal = errors.New("admin: a signal began this drain, so it cannot be undone")

type Node struct {
	ID      string `json:"id"`   // of the relay
	Role    string `json:"role"` // "serve", "dev", "relay" or "api"
	Region  string `json:"region"`
	Version string `json:"version"`
	// Lacks is what this process could ask of a relay of its own version, and not of this one.
	Lacks []string `json:"lacks,omitempty"`
	// State is "ready", "draining" or "not ready"; for another process also those below.
	State string   `json:"state"`
	UDP   []string `json:"udp"`
	// API is where players' calls are answered; for another relay, its cluster listener.
	API string `json:"api"`
	// Since is the start of the process; absent if unknown. LastHeartbeat is when another process
	// last announced itself in the store.
	Since         time.Time `json:"since,omitzero"`
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
	Allocations   int       `json:"allocations"`
	Bound         int       `json:"bound"`
	Links         int       `json:"links"`
	// Matches are the hosts, and Traffic is of the last seconds.
	Matches int     `json:"matches,omitempty"`
	Traffic Traffic `json:"traffic,omitzero"`
	// Load is the processor usage of the busiest thread of another relay, 0 to 1.
	Load float64 `json:"load,omitempty"`
	// Seats are the reserved seats; MaxSeats of 0 means no limit.
	Seats    int `json:"seats"`
	MaxSeats int `json:"max_seats"`
}

// States of another process.
const (
	StateSuspect = "suspect" // it did not answer recently
	StateDead    = "dead"    // it does not announce itself any more
	StateStopped = "stopped" // it has ended as it was told to; its players may return if it starts again
	StateUnknown = "unknown" // the store does not answer, or did not until a moment ago
)

// Serves reports whether the process may answer: it is neither dead nor stopped.
func (n *Node) Serves() bool { return n.State != StateDead && n.State != StateStopped }

// Traffic is the rate of a relay, per second; bytes are without UDP and IP headers.
type Traffic struct {
	Received      float64 `json:"datagrams_in_per_second"`
	ReceivedBytes float64 `json:"bytes_in_per_second"`
	Sent          float64 `json:"datagrams_out_per_second"`
	SentBytes     float64 `json:"bytes_out_per_second"`
	Dropped       float64 `json:"dropped_per_second"`
}

type Nodes struct {
	Nodes []Node `json:"nodes"`
	// StoreAway is since when the store of the fleet has not answered; absent if it does. Then other
	// processes are listed as they were known before, others may be missing, and their states are
	// not known.
	StoreAway time.Time `json:"store_away_since,omitzero"`
	// StoresAway are the stores that do not answer if each region has its own. The same is true of the
	// processes of these regions.
	StoresAway []StoreAway `json:"stores_away,omitempty"`
}

// AwayText says which stores do not answer since when, empty if all answer. A time is written as format
// does.
func (n *Nodes) AwayText(format func(time.Time) string) string {
	if !n.StoreAway.IsZero() {
		return "the store has not answered since " + format(n.StoreAway)
	}
	var texts []string
	for _, s := range n.StoresAway {
		texts = append(texts, "the store of region "+s.Region+" has not answered since "+format(s.Since))
	}
	return strings.Join(texts, ", ")
}

type StoreAway struct {
	Region string    `json:"region"`
	Since  time.Time `json:"since"`
}

// Missing is a relay whose part an answer about a fleet lacks.
type Missing struct {
	Relay  string `json:"relay,omitempty"` // absent: relays that are not known
	Region string `json:"region,omitempty"`
	Reason string `json:"reason"`
}

// DrainState is the response of /drain.
type DrainState struct {
	// Node is the id in the path; absent in /drain.
	Node string `json:"node,omitempty"`

	Draining bool `json:"draining"`
	Final    bool `json:"final"`
	// Deadline is the latest end of the process; absent: no deadline.
	Deadline time.Time `json:"deadline,omitzero"`
	// Threshold is the number of allocations at which the drain is complete.
	Threshold   int `json:"threshold"`
	Allocations int `json:"allocations"`
}

// ActionResult is the response to DELETE and to kick.
type ActionResult struct {
	ID   string `json:"id"`
	Done string `json:"done"` // "closed" or "kicked"
}

// Allocation is an item of /allocations.
type Allocation struct {
	ID       string `json:"id"`
	Role     string `json:"role"`
	Match    string `json:"match"` // id of the host
	JoinCode string `json:"join_code,omitempty"`
	// Player is the player for whom it was reserved. It is empty if it is not known, as after
	// a restart if its name is too long for the connection data.
	Player string `json:"player,omitempty"`
	// Project and Environment are empty if they are unknown.
	// Tenant is a digest of both, in hexadecimal.
	Project     string `json:"project,omitempty"`
	Environment string `json:"environment,omitempty"`
	Tenant      string `json:"tenant"`
	Bound       bool   `json:"bound"`
	// Transport is "udp4", "udp6", "dtls", "ws" or the name of another transport. Endpoint is the
	// client's address and port, over another transport than UDP and DTLS its address; absent: not known.
	Transport string `json:"transport,omitempty"`
	Endpoint  string `json:"endpoint,omitempty"`
	// Recovered is set if the allocation was restored after a restart. Age then
	// counts from the restart.
	Recovered      bool    `json:"recovered"`
	Age            float64 `json:"age_seconds"`
	Heard          float64 `json:"heard_seconds_ago"`
	Active         float64 `json:"active_seconds_ago"`
	Connections    int     `json:"connections"`
	MaxConnections int     `json:"max_connections,omitempty"`
	AllocationCounts
}

// EndpointText returns an address, with its port unless that is 0, as of a WebSocket; empty: it is invalid.
func EndpointText(e netip.AddrPort) string {
	switch {
	case !e.IsValid():
		return ""
	case e.Port() == 0:
		return e.Addr().String()
	}
	return e.String()
}

type AllocationCounts struct {
	// SentDatagrams and SentBytes count what the relay forwarded for the player since it was
	// reserved, or came back after a restart, without UDP and IP headers.
	SentDatagrams uint64 `json:"datagrams_sent"`
	SentBytes     uint64 `json:"bytes_sent"`
	// ReceiverSizeDrops counts the messages to the player that were dropped because
	// they exceed the maximum message of its transport.
	ReceiverSizeDrops uint32 `json:"receiver_size_drops"`
	// LargeMessages counts the messages to the player that were forwarded, but may be too
	// large for its client.
	LargeMessages uint32 `json:"large_messages"`
}

// The rows of a listing: without the parameter limit, and at most.
const (
	DefaultRows = 100
	MaxRows     = 1000
)

type Allocations struct {
	Allocations []Allocation `json:"allocations"`
	// Next is the cursor of the next page; 0: this is the last page.
	Next uint32 `json:"next"`
}

// Match is an item of /matches: a host and what is known of its match.
type Match struct {
	Host Allocation `json:"host"`
	// Datagrams and Bytes are what its members sent to each other per second, on average
	// since the hosts were read before, or since the match began if that was later, without UDP and IP
	// headers.
	Datagrams float64 `json:"datagrams_per_second"`
	Bytes     float64 `json:"bytes_per_second"`
	// Relay is the relay that has the match, if a fleet was asked.
	Relay string `json:"relay,omitempty"`
}

type Matches struct {
	Matches []Match `json:"matches"`
	// Total is how many matches the search found. Truncated is set if the relay has more
	// than were searched.
	Total     int       `json:"total"`
	Truncated bool      `json:"truncated,omitempty"`
	Missing   []Missing `json:"missing,omitempty"`
}

// Page is a response of a relay: JSON with status 200, otherwise a line of text.
type Page struct {
	Status int    `json:"status"`
	Body   []byte `json:"body"`
}
