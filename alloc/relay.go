package alloc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"github.com/ferryrelay/ferry/proto"
)

// Errors that a [Relay] and a [Service] answer with. The HTTP layer maps each
// of them to a status and a code of the Relay Allocations API.
var (
	// ErrNotFound: the allocation is not there, has ended, or belongs to
	// somebody else; a caller cannot tell which.
	ErrNotFound = errors.New("alloc: allocation not found")
	// ErrCodeNotFound: well-formed join code that leads to no live host.
	ErrCodeNotFound = errors.New("alloc: join code not found")
	// ErrCodeMalformed: not 6 to 12 symbols of the join code alphabet.
	ErrCodeMalformed = errors.New("alloc: malformed join code")
	// ErrMaxConnections: maximum of connections outside 1 to the ceiling.
	ErrMaxConnections = errors.New("alloc: maxConnections out of range")
	// ErrRegion: no relay serves the region asked for.
	ErrRegion = errors.New("alloc: region not found")
	// ErrFull: the relay holds as many allocations as it may; try again later.
	ErrFull = errors.New("alloc: no room on the relay")
	// ErrUnavailable: the relay is not running, did not answer in time, or
	// cannot tell yet: after a restart a host may still be on its way back.
	ErrUnavailable = errors.New("alloc: relay unavailable")
	// ErrStoreUnavailable is an ErrUnavailable that is no relay's: the store of
	// the fleet did not answer, or has yet to be told again what it lost.
	ErrStoreUnavailable error = elsewhere("alloc: store unavailable")
	// ErrAdmissionUnavailable is one that is neither's: the operator's own
	// program, which decides about players, gave no answer.
	ErrAdmissionUnavailable error = elsewhere("alloc: admission unavailable")
	// ErrDraining: the relay ends what it has and takes no new hosts.
	ErrDraining = errors.New("alloc: relay is draining")
	// ErrOutstanding: the player has reserved as many allocations as it may
	// without binding them; each counts until it is bound or has lapsed.
	ErrOutstanding = errors.New("alloc: too many allocations reserved and not bound")
)

// elsewhere is an [ErrUnavailable] whose cause is not the relay.
type elsewhere string

// Error returns the text.
func (e elsewhere) Error() string { return string(e) }

// Is reports that e is an ErrUnavailable too.
func (e elsewhere) Is(target error) bool { return target == ErrUnavailable }

// Role says what an allocation or a piece of connection data is for.
type Role uint8

// The roles. RoleTicket never owns an allocation: it is the role sealed into
// the host connection data that a joiner receives.
const (
	RoleNone   Role = 0
	RoleHost   Role = 1
	RoleJoiner Role = 2
	RoleTicket Role = 3
)

// String returns the lower-case name of the role.
func (r Role) String() string {
	switch r {
	case RoleHost:
		return "host"
	case RoleJoiner:
		return "joiner"
	case RoleTicket:
		return "ticket"
	}
	return "none"
}

// PlayerHash is a digest of the player an allocation was issued to, salted
// with its tenant. Ownership is compared by it; names of players are not kept.
type PlayerHash [16]byte

// HashPlayer returns the digest of player within tenant t.
func HashPlayer(t Tenant, player string) PlayerHash {
	sum := sha256.Sum256([]byte(t.Project + "\x00" + t.Environment + "\x00" + player))
	return PlayerHash(sum[:16])
}

// ConnectionDataLen is the size in bytes of all connection data that a relay
// issues: the real client pads to it, so nothing else is worth issuing.
const ConnectionDataLen = proto.MaxConnectionData

// ConnectionData is sealed connection data as it goes over the wire.
type ConnectionData [ConnectionDataLen]byte

// Epoch returns the week whose key sealed d, for [Sealer.Retain].
func (d *ConnectionData) Epoch() uint16 { return binary.BigEndian.Uint16(d[epochAt:]) }

// ServerEndpoint is one way to reach a relay. The fields are those of the
// Relay Allocations API.
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
	Tenant         Tenant
	Player         PlayerHash
	MaxConnections int // players besides the host
	// Region is where the host wants to be, empty where that is left to whoever
	// places it. Hint is the client's address, or its network, for that choice;
	// the zero address if it is not known. A relay looks at neither.
	Region string
	Hint   netip.Addr
}

// JoinerRequest asks the relay of a host for an allocation for one joiner.
type JoinerRequest struct {
	Tenant Tenant
	Player PlayerHash
	Host   proto.AllocationID
}

// Reservation is an allocation that a relay has set aside. It is lost unless
// its holder binds within the relay's bind time-out (10 s by default).
type Reservation struct {
	ID             proto.AllocationID
	Key            proto.Key // HMAC key of its BIND, 64 bytes
	ConnectionData ConnectionData
	// HostConnectionData is the ticket with which a joiner asks for its host.
	// For a host it is its own connection data.
	HostConnectionData ConnectionData
	Endpoints          []ServerEndpoint
	Region             string
}

// Description is what a relay tells about one of its live allocations.
type Description struct {
	Tenant uint64 // Tenant.Hash
	Player PlayerHash
	Role   Role
	Bound  bool
}

// Region is a place where relays stand.
type Region struct {
	ID          string
	Description string
	// QoSAddress is where it answers QoS probes, host:port; empty: not told.
	QoSAddress string
	// WebSocketURL is where a relay of it takes WebSockets; empty: not told.
	WebSocketURL string
}

// WebSocketURL returns where endpoints take WebSockets, wss rather than ws, or
// "" if they do not.
func WebSocketURL(endpoints []ServerEndpoint) string {
	for _, scheme := range []string{"wss", "ws"} {
		for _, e := range endpoints {
			if e.ConnectionType == scheme {
				return scheme + "://" + net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))) + "/"
			}
		}
	}
	return ""
}

// Relay is what the Allocations service needs of a relay. Its methods may be
// called from several goroutines. The in-process relay is engine.Server.
type Relay interface {
	// ReserveHost sets a host's allocation aside. Errors: ErrFull,
	// ErrMaxConnections, ErrDraining, ErrUnavailable.
	ReserveHost(ctx context.Context, r HostRequest) (Reservation, error)
	// ReserveJoiner sets an allocation aside for a joiner of r.Host. Errors:
	// ErrNotFound when the host has ended or is of another tenant, ErrFull,
	// ErrDraining, and ErrUnavailable, also while the host may still come back
	// after a restart. A relay that drains takes joiners for its live hosts.
	ReserveJoiner(ctx context.Context, r JoinerRequest) (Reservation, error)
	// Describe tells about a live allocation. Errors: ErrNotFound, and
	// ErrUnavailable, also while the allocation may still come back.
	Describe(ctx context.Context, id proto.AllocationID) (Description, error)
}

// Store remembers join codes. Its methods may be called from several
// goroutines. Codes are upper-case and scoped to a tenant.
type Store interface {
	// PutCode remembers code for host. It reports false, and changes nothing,
	// when the tenant already has that code, or the host already has a code.
	PutCode(ctx context.Context, t Tenant, code string, host proto.AllocationID) (bool, error)
	// HostOf returns the host that code leads to, or ErrCodeNotFound.
	HostOf(ctx context.Context, t Tenant, code string) (proto.AllocationID, error)
	// CodeOf returns the code of host, or ErrCodeNotFound.
	CodeOf(ctx context.Context, t Tenant, host proto.AllocationID) (string, error)
	// Codes returns how many codes the tenant has.
	Codes(ctx context.Context, t Tenant) (int, error)
	// Forget drops the code of host, if it has one. It does not block.
	Forget(host proto.AllocationID)
}
