package netcode

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// NoTimeout disables a timeout, in the fields of Timeouts that name it.
const NoTimeout time.Duration = utp.NoTimeout

// Config configures a Driver. Negative values are invalid, except NoTimeout. Durations of
// the transport count in whole milliseconds.
type Config struct {
	// Link carries the datagrams, and is the driver's from NewServer or NewClient on.
	// Nil means a UDP socket, opened by Listen or Connect.
	Link link.Link
	// Conditions simulate a bad network in front of the link, the same in both directions. Chance follows from its address.
	Conditions link.Conditions

	// GameVersion must be the same on both sides.
	GameVersion int32
	// ComponentsHash is the fingerprint of what the game writes into commands
	// and snapshots. It must be the same unless RelaxedVersion is set.
	ComponentsHash uint64
	// RPCs are the RPCs of the game, copied when the driver is made. Nil means
	// none. They must be the same on both sides unless RelaxedVersion is set.
	RPCs *RPCRegistry
	// RelaxedVersion compares only the versions of the protocol and of the game,
	// and names RPCs by 8 bytes more, so that the sides may know different ones.
	RelaxedVersion bool

	// RequireApproval makes a server ask its game about each client, see
	// Conn.Approve. It is fixed once the server listens.
	RequireApproval bool
	// MaxConnections bounds the clients of a server. 0 means 1024, the limit is
	// 65536. One above it is refused by a disconnect.
	MaxConnections int
	// CommandsPerDatagram is how many commands a client sends at once: the newest and, as far
	// as they fit, the ones before it again. 0 means 4, 1 repeats none, the limit is 32.
	CommandsPerDatagram int
	Limits              Limits
	Timeouts            Timeouts

	// Rand gives the tokens of connections. Nil means crypto/rand.
	Rand io.Reader
	// Logger logs changes of connections, not datagrams. Nil disables logs.
	Logger *slog.Logger
}

// Limits bound what the peers of a driver can cost. Zero means the default.
type Limits struct {
	// MaxHandshaking bounds the clients of a server that have proven their address and are
	// in handshake or approval. Default 256, at most 65536. One above it is refused by a
	// disconnect and is no event.
	MaxHandshaking int
	// MaxHandshakingPerSource is the same for one IPv4 address, one IPv6 /64 or one
	// allocation. Default 32. A further client gets no answer meanwhile.
	MaxHandshakingPerSource int
	// MaxMessageSize is the largest datagram in bytes on the socket, with those of a
	// relay. Default 1400, at most 1472. 128 must be left without those of a relay.
	MaxMessageSize int
	// MaxSnapshotLen bounds a snapshot or a command in bytes. Default 16 KiB, at most 1 MiB
	// less 22 bytes. One of several packets is lost with each of them.
	MaxSnapshotLen int
	// MaxRPCQueue bounds the RPCs in bytes that wait to be sent to one peer. Default 256 KiB.
	MaxRPCQueue int
	// MaxRPCLen bounds the payload in bytes of an RPC that needs more than one packet, sent
	// or received. Default 64 KiB, at most 1 MiB. A peer that announces a larger one is
	// disconnected with ReasonInvalidRPC. A connection holds at most twice what has arrived
	// of one.
	MaxRPCLen int
}

// Timeouts are the times of a driver. Zero means the default.
type Timeouts struct {
	// HandshakeApproval is how long a client may take from the proof of its address until
	// it is connected. Default 5 s, at least 1 s. A client counts the time of each state.
	HandshakeApproval time.Duration
	// Connect is the time between two requests of a client. Default 1 s.
	Connect time.Duration
	// ConnectAttempts is how many requests a client sends before the attempt ends with
	// ReasonMaxConnectionAttempts. Default 60.
	ConnectAttempts int
	// Heartbeat is the idle time before a heartbeat. Default 500 ms; NoTimeout: none.
	Heartbeat time.Duration
	// Disconnect is how long nothing may be received before the connection ends with
	// ReasonTimeout. Default 30 s, NoTimeout means no limit.
	Disconnect time.Duration
	// MaxResend bounds the time after which an unacknowledged packet of RPCs is
	// sent again, 64 ms to 10 s. Default 200 ms.
	MaxResend time.Duration
}

const (
	// maxReceive bounds the datagrams that one Update takes, so that a flood delays a tick
	// and no more. What is above it stays in the link.
	maxReceive = 4096
	// maxConnections is what the slots of the transport can hold.
	maxConnections = 65536
	// minSendQueue and sendsPerConnection bound the datagrams that one Flush sends: room for
	// a snapshot of some packets for each connection.
	minSendQueue       = 4096
	sendsPerConnection = 4
	maxSendQueue       = 65536
)

func (c Config) withDefaults() Config {
	c.MaxConnections = cmp.Or(c.MaxConnections, 1024)
	c.CommandsPerDatagram = cmp.Or(c.CommandsPerDatagram, 4)
	l, t := &c.Limits, &c.Timeouts
	l.MaxHandshaking = cmp.Or(l.MaxHandshaking, 256)
	l.MaxHandshakingPerSource = cmp.Or(l.MaxHandshakingPerSource, 32)
	l.MaxSnapshotLen = cmp.Or(l.MaxSnapshotLen, 16<<10)
	l.MaxRPCQueue = cmp.Or(l.MaxRPCQueue, 256<<10)
	l.MaxRPCLen = cmp.Or(l.MaxRPCLen, 64<<10)
	t.HandshakeApproval = cmp.Or(t.HandshakeApproval, 5*time.Second)
	t.Heartbeat = cmp.Or(t.Heartbeat, 500*time.Millisecond)
	t.Disconnect = cmp.Or(t.Disconnect, 30*time.Second)
	if c.RPCs == nil {
		c.RPCs = new(RPCRegistry)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) check() error {
	if c.Timeouts.HandshakeApproval < time.Second {
		return fmt.Errorf("%w: Timeouts.HandshakeApproval %v is below 1s", ErrConfig, c.Timeouts.HandshakeApproval)
	}
	for _, n := range []struct {
		name         string
		value, limit int
	}{
		{"MaxConnections", c.MaxConnections, maxConnections},
		{"Limits.MaxHandshaking", c.Limits.MaxHandshaking, maxConnections},
		{"Limits.MaxHandshakingPerSource", c.Limits.MaxHandshakingPerSource, maxConnections},
		{"Limits.MaxSnapshotLen", c.Limits.MaxSnapshotLen, utp.MaxFragmentCapacity - maxHeaderLen},
		{"CommandsPerDatagram", c.CommandsPerDatagram, 32},
		{"Limits.MaxRPCQueue", c.Limits.MaxRPCQueue, math.MaxInt},
		{"Limits.MaxRPCLen", c.Limits.MaxRPCLen, rpcLenLimit},
	} {
		if n.value < 0 || n.value > n.limit {
			return fmt.Errorf("%w: %s is %d, not within 1 and %d", ErrConfig, n.name, n.value, n.limit)
		}
	}
	if err := c.Conditions.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	transport := c.transport(0)
	transport.DisconnectTimeout = c.Timeouts.Disconnect
	if _, err := utp.New(transport); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

func (c Config) transport(overhead int) utp.Config {
	t := utp.NetcodeForEntities()
	t.ValidateAddresses = true
	t.Overhead = overhead
	t.FragmentCapacity = c.Limits.MaxSnapshotLen + maxHeaderLen
	t.SendQueue = min(max(sendsPerConnection*c.MaxConnections, minSendQueue), maxSendQueue)
	t.MaxConnections = c.MaxConnections
	t.MaxHalfOpen, t.MaxHalfOpenPerSource = c.Limits.MaxHandshaking, c.Limits.MaxHandshakingPerSource
	t.MaxMessageSize, t.MaxResendTime = c.Limits.MaxMessageSize, c.Timeouts.MaxResend
	t.ConnectTimeout, t.ConnectAttempts = c.Timeouts.Connect, c.Timeouts.ConnectAttempts
	t.HeartbeatTimeout = c.Timeouts.Heartbeat
	t.DisconnectTimeout = NoTimeout // Driver.expire counts it, and tells the peer the reason.
	t.Rand = c.Rand
	return t
}
