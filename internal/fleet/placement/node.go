package placement

import (
	"context"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Node is the announcement of a relay. Its JSON and that of an APIProcess are in the store: see package redisstore
// for the fields without a name.
type Node struct {
	// Relay is the id of the relay, which lasts as long as its master key. Boot
	// identifies its current run.
	Relay alloc.RelayID `json:"-"`
	Boot  uint64        `json:"-"`
	// Region is the id of its region, Description the display name of the region,
	// QoSAddress the host:port that answers latency probes, or empty.
	Region      string `json:"region"`
	Description string `json:"description,omitempty"`
	QoSAddress  string `json:"qos,omitempty"`
	// Control is host:port of its cluster listener.
	Control   string                 `json:"control,omitempty"`
	Endpoints []alloc.ServerEndpoint `json:"-"`
	Usage
	// Version is that of the program, and Capabilities what its relay can do beyond the first
	// version of the calls.
	Version      string       `json:"version,omitempty"`
	Capabilities []Capability `json:"capabilities,omitempty"`
	// Draining means that it accepts no new hosts, and Stopped that its process has ended as it
	// was told to. Its players may return when it starts again.
	Draining bool `json:"draining,omitempty"`
	Stopped  bool `json:"stopped,omitempty"`
	// Healing means that the store may not have all hosts of the relay yet.
	Healing bool `json:"healing,omitempty"`
	// RecoverFor is the time after a restart in which its players may return.
	RecoverFor time.Duration `json:"-"`
}

// Usage is how much of a relay is in use, as measured for each announcement.
type Usage struct {
	// Seats is its capacity in players, hosts included. Taken are the reserved seats:
	// one per host plus its maxConnections.
	Seats int `json:"seats"`
	Taken int `json:"taken"`
	// Load is the processor usage of its busiest worker, 0 to 1.
	Load float64 `json:"load"`
	// Allocations are those of the relay, Players those that are bound, Matches its hosts, and
	// Links the open links. Allocations and Links are 0 for the first version of the calls.
	Allocations int `json:"allocations,omitempty"`
	Players     int `json:"players"`
	Matches     int `json:"matches"`
	Links       int `json:"links,omitempty"`
	// Traffic is that of the last seconds, and Up for how long the process has run; 0: not known.
	Traffic Traffic       `json:"traffic,omitzero"`
	Up      time.Duration `json:"-"`
}

// Traffic is the rate of a relay, per second: datagrams and their bytes without UDP and IP headers
// that it received and sent, and datagrams that it dropped.
type Traffic struct {
	Received      float64 `json:"received"`
	ReceivedBytes float64 `json:"receivedBytes"`
	Sent          float64 `json:"sent"`
	SentBytes     float64 `json:"sentBytes"`
	Dropped       float64 `json:"dropped"`
}

// Capability is what a relay can do that relays of an earlier version cannot. An API process
// asks a relay only for what it announces, so that versions can be mixed in any order.
type Capability string

const (
	// CapabilityPlayers: reservations name their player, and its limits count at the relay.
	CapabilityPlayers Capability = "players"
	// CapabilityTags: reservations carry a tag of the caller.
	CapabilityTags Capability = "tags"
	// CapabilityMigration: a player of a match can take the place of its host.
	CapabilityMigration Capability = "migration"
)

// Capabilities returns those of this version.
func Capabilities() []Capability {
	return []Capability{CapabilityPlayers, CapabilityTags, CapabilityMigration}
}

// Lacks returns the capabilities of this version that the node does not announce.
func (n *Node) Lacks() (lacking []Capability) {
	for _, c := range Capabilities() {
		if !slices.Contains(n.Capabilities, c) {
			lacking = append(lacking, c)
		}
	}
	return lacking
}

type Seen struct {
	Node
	// Age is the time since its last heartbeat, by the store's clock.
	Age time.Duration
}

// The heartbeat. A node that is older than DeadAfter gets nothing new: two heartbeats may be lost.
const (
	HeartbeatEvery = 2 * time.Second
	DeadAfter      = 3 * HeartbeatEvery
)

// APIProcess is the announcement of a process without a relay, for operators.
type APIProcess struct {
	Boot uint64 `json:"-"`
	Name string `json:"name"`
	// URL is where players' calls are answered; State is "ready", "draining" or "not ready".
	URL     string        `json:"url,omitempty"`
	Version string        `json:"version,omitempty"`
	State   string        `json:"state"`
	Up      time.Duration `json:"-"`
}

type SeenAPIProcess struct {
	APIProcess
	Age time.Duration
}

// Registry holds the announcements of relays. Its methods may be called concurrently.
type Registry interface {
	// Announce writes the node's entry and its age, 0. It reports whether the
	// store still has what the run of this relay announced before: false means
	// that the store is new or has lost writes, so that everything which the
	// relay holds must be announced again. The first Announce of a run reports
	// false.
	Announce(ctx context.Context, n Node) (intact bool, err error)
	// Nodes returns all entries, those of dead relays too, for as long as
	// their RecoverFor and DeadAfter together and a minute more.
	Nodes(ctx context.Context) ([]Seen, error)
	// Withdraw removes the entry of a relay that shuts down, if it is of that boot.
	Withdraw(ctx context.Context, relay alloc.RelayID, boot uint64) error
}

// Home is the relay that holds an allocation, and the run of the relay that made it.
type Home struct {
	Relay alloc.RelayID
	Boot  uint64
}

// HostEntry is a host that a relay holds, with its join code if it has one.
type HostEntry struct {
	Host   proto.AllocationID
	Tenant uint64 // alloc.Tenant.Hash
	Code   string // empty: none
	// Since is when the relay reserved it, or learned of it again.
	Since time.Time
}

// Lost is a held host whose code leads to another one.
type Lost struct{ Host, Holder proto.AllocationID }

// HostTTL is the time for which the store keeps a host and its code without a refresh.
// It outlasts a relay's death by its recovery window, even if the last refresh was refreshEvery before.
const HostTTL = 3 * time.Minute

// Directory holds the hosts of a fleet and their join codes, for all API processes. Its
// methods may be called concurrently.
type Directory interface {
	// A code that MoveCode has moved counts as older than that of any other host, so that no
	// Renew of the former host, perhaps a late one, takes it back.
	alloc.Store
	SetHome(ctx context.Context, host proto.AllocationID, home Home) error
	HomeOf(ctx context.Context, host proto.AllocationID) (Home, error)
	// Renew makes hosts and codes last for another HostTTL, and puts back those
	// that the store has lost. A code that leads to another host by now goes to
	// the one with the earlier Since, and where these are equal to the one with
	// the lower id. It returns the hosts of entries that lost their code.
	Renew(ctx context.Context, home Home, entries []HostEntry) ([]Lost, error)
	// Drop removes hosts that have ended, and their codes, as far as they still
	// are those of home.
	Drop(ctx context.Context, home Home, entries []HostEntry) error
}

// Dialer connects to the relays of a fleet. Its methods may be called concurrently.
type Dialer interface {
	// Relay returns the relay with that control address. It does not connect:
	// the calls do, and keep what they have opened.
	Relay(n Node) Relay
}

// Relay is a relay of the fleet, of this process or of another one. It alone counts seats. Besides the
// errors of alloc.Relay the calls to another process return alloc.ErrUnavailable for a relay that did not
// answer in time. A reservation whose answer was lost is cancelled.
type Relay interface {
	ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error)
	ReserveJoiner(ctx context.Context, r alloc.JoinerRequest) (alloc.Reservation, error)
	MigrateHost(ctx context.Context, r alloc.MigrationRequest) (alloc.Reservation, error)
	LeaveHost(ctx context.Context, r alloc.LeaveRequest) error
	Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error)
	// KeepCode makes the code of a live host outlive a crash. Errors: alloc.ErrNotFound,
	// alloc.ErrUnavailable, alloc.ErrCodeMalformed.
	KeepCode(ctx context.Context, host proto.AllocationID, code string) error
	// End ends an allocation, such as a reservation that its caller cannot use. Errors:
	// alloc.ErrNotFound, alloc.ErrUnavailable.
	End(ctx context.Context, id proto.AllocationID) error
}
