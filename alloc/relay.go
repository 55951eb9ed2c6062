package alloc

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

type Role uint8

const (
	RoleNone   Role = 0
	RoleHost   Role = 1
	RoleJoiner Role = 2
)

// String returns the lower-case name of the role.
func (r Role) String() string {
	switch r {
	case RoleHost:
		return "host"
	case RoleJoiner:
		return "joiner"
	}
	return "none"
}

// ConnectionData is sealed connection data as it is sent over the wire. All that a relay issues has
// this size, to which real clients pad shorter data.
type ConnectionData [proto.MaxConnectionData]byte

// ServerEndpoint is one way to reach a relay.
type ServerEndpoint struct {
	ConnectionType string // "udp", "dtls", "ws" or "wss"
	Network        string // "udp" or "tcp"
	Host           string // an IP literal for udp and dtls, a name for wss
	Port           uint16
	Reliable       bool
	Secure         bool
}

// HostRequest asks a relay for an allocation for a host.
type HostRequest struct {
	// Caller is for whom it is. A relay in another process gets neither its Regions nor its Server.
	Caller
	PlayerHash     PlayerHash // of Player; a new one for a caller without a name
	MaxConnections int        // players besides the host
	Region         string     // the requested one; if it is empty, the fleet chooses one
}

// JoinerRequest asks the relay of a host for an allocation for one joiner.
type JoinerRequest struct {
	Caller     // as for HostRequest
	PlayerHash PlayerHash
	Host       proto.AllocationID
}

// Reservation is a new allocation. It expires unless a client binds it within the
// relay's bind timeout (10 s by default).
type Reservation struct {
	ID             proto.AllocationID
	Key            proto.Key // HMAC key of its BIND, 64 bytes
	ConnectionData ConnectionData
	// HostConnectionData is the ticket with which a joiner connects to its host.
	// For a host it is its own connection data.
	HostConnectionData ConnectionData
	Endpoints          []ServerEndpoint
	Region             string
}

type Description struct {
	Tenant uint64 // Tenant.Hash
	Player PlayerHash
	Role   Role
	Bound  bool
	// Code is the join code that the relay itself gives a host in the place of a former one,
	// or would give it; empty for others.
	Code string
}

type Region struct {
	ID           string
	Description  string
	QoSAddress   string
	WebSocketURL string
}

// RelayConfig is the configuration of a relay as far as a [Service] must agree with it. A field that
// is empty or zero is not known.
type RelayConfig struct {
	Region         string
	MaxConnections int // the most that a host may request
	BindTimeout    time.Duration
	HostMigration  bool // players can take the place of a host that has left
	// Unlimited turns MaxOutstanding and the limits of package httpapi off, for tests and development.
	Unlimited bool
}

// Relay makes allocations. Its methods may be called concurrently, and an error means that
// nothing was reserved, also if ctx has ended. What a relay cannot do is an errors.ErrUnsupported.
// The relay of the same process is *engine.Server.
type Relay interface {
	// RelayConfig returns the same each time. NewService refuses what contradicts it.
	RelayConfig() RelayConfig
	// ReserveHost reserves an allocation for a host. Errors: ErrFull,
	// ErrMaxConnections, ErrPlayerLimit, ErrDraining, ErrUnavailable.
	ReserveHost(ctx context.Context, r HostRequest) (Reservation, error)
	// ReserveJoiner reserves an allocation for a joiner of r.Host. Errors:
	// ErrNotFound when the host has ended or belongs to another tenant, ErrFull,
	// ErrPlayerLimit, ErrDraining, and ErrUnavailable, also while the host may still come back
	// after a restart. A draining relay accepts joiners of its live hosts.
	ReserveJoiner(ctx context.Context, r JoinerRequest) (Reservation, error)
	// MigrateHost reserves an allocation for a player that would take the place of its host,
	// with the host's number of connections, also while the relay drains. One player holds one at
	// a time, for 2 s while others ask, and another one of the same player replaces it. Once it is
	// bound it is the new host, and gets the code.
	// Errors: ErrNotFound when the match is over, and for a player that is none of it;
	// ErrMigration; ErrHostPresent; ErrFull; ErrUnavailable.
	MigrateHost(ctx context.Context, r MigrationRequest) (Reservation, error)
	// LeaveHost records that a host leaves: its players may take its place at once, and new
	// players get an ErrMigration. The relay forwards its messages until a new host is
	// bound. Another call does nothing. Errors: ErrNotFound, also for a wrong proof, ErrUnavailable.
	LeaveHost(ctx context.Context, r LeaveRequest) error
	// Describe describes a live allocation. Errors: ErrNotFound, and
	// ErrUnavailable, also while the allocation may still come back.
	Describe(ctx context.Context, id proto.AllocationID) (Description, error)
	// Observe makes o hear of each allocation that is bound or ends from now on. A relay in another
	// process cannot do it.
	Observe(o Observer) error
}

// Observer hears of the allocations of a [Relay]. A [Service] is one, and [NewService] registers
// it. Its methods must not block or call the relay.
type Observer interface {
	// OnBind is called when an allocation was bound, and when a host has ended whose place a
	// player may take.
	OnBind(id proto.AllocationID)
	// OnEnd is called when an allocation has ended and no player can take its place.
	OnEnd(id proto.AllocationID)
	// OnMigrate is called when a player has taken the place of a host, for the tenant with that
	// hash: the code must lead to the new host.
	OnMigrate(tenant uint64, code string, from, to proto.AllocationID) error
}

// Store holds join codes. Its methods may be called concurrently. Codes are in
// upper case and belong to a tenant.
type Store interface {
	// PutCode stores code for host. It reports false, and changes nothing,
	// when the tenant already has that code, or the host already has a code.
	PutCode(ctx context.Context, t Tenant, code string, host proto.AllocationID) (bool, error)
	// HostOf returns the host of code, or ErrCodeNotFound.
	HostOf(ctx context.Context, t Tenant, code string) (proto.AllocationID, error)
	// CodeOf returns the code of host, or ErrCodeNotFound.
	CodeOf(ctx context.Context, t Tenant, host proto.AllocationID) (string, error)
	// Codes returns the symbols with which a new code of host begins, and how many codes of the
	// tenant begin with them. They are empty unless the store has several parts, of which each
	// fails without the others: then they name the part. Further errors: ErrNotFound, ErrUnavailable.
	Codes(ctx context.Context, t Tenant, host proto.AllocationID) (prefix string, codes int, err error)
	// Forget removes the code of host, if it has one. It does not block.
	Forget(host proto.AllocationID)
	// MoveCode makes a code of from, or one that leads nowhere, the code of to, for the tenant
	// with that hash. It reports false, and changes nothing, when the code leads to another host
	// or to has another code. It may be repeated. Like Forget it does not block if the relay is in
	// this process. With from and to the same it stores a code of an earlier run. A store that cannot
	// do it is for relays that have no host migration, or move the codes.
	MoveCode(ctx context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error)
}
