package netcode

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// NoTimeout disables a timeout, in the fields of Config that name it.
const NoTimeout time.Duration = utp.NoTimeout

// Config configures a Driver. Negative values are invalid, except NoTimeout. Durations of
// the transport count in whole milliseconds.
type Config struct {
	// Link carries the datagrams; the driver owns it from NewServer or NewClient on. Nil
	// means a UDP socket, which Listen opens at its address, and Connect at any of the
	// server's family.
	Link link.Link
	// Conditions simulate a bad network in front of the link, in both directions, for
	// tests and development, see link.Simulate. Zero means none.
	Conditions link.Conditions
	// AutoConnectPort makes the first Update of a server listen at this UDP port, and that of
	// a client connect to it. 0 turns it off.
	AutoConnectPort uint16
	// AutoListenAddress is where the server listens then. Zero means 0.0.0.0.
	AutoListenAddress netip.Addr
	// AutoConnectAddress is where the client connects to then. Zero means 127.0.0.1, and
	// 0.0.0.0 means that it does not.
	AutoConnectAddress netip.Addr

	// GameVersion must be the same on both sides. 0 is as good as another.
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
	// HandshakeApprovalTimeout is how long a client may take from the proof of its
	// address, which comes with its version, until it is connected, handshake and approval
	// together. 0 means 5 s, the minimum is 1 s. A client counts StateHandshake and
	// StateApproval by its own, one after the other.
	HandshakeApprovalTimeout time.Duration

	// MaxConnections bounds the clients of a server. 0 means 1024, the limit is
	// 65536. One above it is refused by a disconnect.
	MaxConnections int
	// MaxHandshaking bounds those of them that are in handshake or approval. 0 means
	// 256, the limit is 65536. One above it is refused by a disconnect and is no event. A
	// client has such a place from when it has proven its address, so forged requests take
	// none.
	MaxHandshaking int
	// MaxHandshakingPerSource is the same for one IPv4 address, one IPv6 /64 or one
	// allocation. 0 means 32, enough for a school behind one address. A further client gets
	// no answer meanwhile, and asks again.
	MaxHandshakingPerSource int

	// ConnectTimeout is the time between two requests of a client. 0 means 1 s.
	ConnectTimeout time.Duration
	// ConnectAttempts is how many requests a client sends before the attempt ends with
	// ReasonMaxConnectionAttempts. 0 means 60.
	ConnectAttempts int
	// HeartbeatTimeout is how long nothing may be sent before a heartbeat is. 0
	// means 500 ms, NoTimeout means no heartbeats.
	HeartbeatTimeout time.Duration
	// DisconnectTimeout is how long nothing may be received before the connection
	// ends with ReasonTimeout, which the peer gets as Event.PeerReason if it still receives.
	// 0 means 30 s, NoTimeout means no limit.
	DisconnectTimeout time.Duration
	// MaxResendTime bounds the time after which an unacknowledged packet of RPCs is
	// sent again, 64 ms to 10 s. 0 means 200 ms. Where round trips are longer,
	// packets are sent again for nothing.
	MaxResendTime time.Duration

	// MaxMessageSize is the largest datagram in bytes on the socket, with those of a
	// relay, up to 1472. 0 means 1400. 128 must be left without those of a relay.
	MaxMessageSize int
	// MaxSnapshotLen bounds a snapshot or a command in bytes. 0 means 16 KiB, the limit is
	// 1 MiB less 22 bytes. One that needs several packets is lost with each of them, and at
	// a side whose own limit is lower.
	MaxSnapshotLen int
	// CommandsPerDatagram is how many commands a client sends at once: the newest and, as far
	// as they fit, the ones before it again. 0 means 4, 1 repeats none, the limit is 32.
	CommandsPerDatagram int
	// MaxRPCQueue bounds the RPCs in bytes that wait to be sent to one peer. 0
	// means 256 KiB.
	MaxRPCQueue int
	// MaxRPCLen bounds the payload in bytes of an RPC that needs more than one packet, sent
	// or received. 0 means 64 KiB, the limit is 1 MiB. A peer that announces a larger one is
	// disconnected with ReasonInvalidRPC. Each connection may hold this much for an RPC that
	// has not arrived completely, and never more than twice what has arrived of it.
	MaxRPCLen int

	// Rand gives the tokens of connections. Nil means crypto/rand.
	Rand io.Reader
	// Logger logs changes of connections, not datagrams. Nil disables logs.
	Logger *slog.Logger
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
	c.HandshakeApprovalTimeout = cmp.Or(c.HandshakeApprovalTimeout, 5*time.Second)
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, 500*time.Millisecond)
	c.DisconnectTimeout = cmp.Or(c.DisconnectTimeout, 30*time.Second)
	c.MaxConnections = cmp.Or(c.MaxConnections, 1024)
	c.MaxHandshaking = cmp.Or(c.MaxHandshaking, 256)
	c.MaxHandshakingPerSource = cmp.Or(c.MaxHandshakingPerSource, 32)
	c.MaxSnapshotLen = cmp.Or(c.MaxSnapshotLen, 16<<10)
	c.CommandsPerDatagram = cmp.Or(c.CommandsPerDatagram, 4)
	c.MaxRPCQueue = cmp.Or(c.MaxRPCQueue, 256<<10)
	c.MaxRPCLen = cmp.Or(c.MaxRPCLen, 64<<10)
	if c.RPCs == nil {
		c.RPCs = new(RPCRegistry)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// check takes a configuration that has its defaults.
func (c Config) check() error {
	if c.HandshakeApprovalTimeout < time.Second {
		return fmt.Errorf("%w: HandshakeApprovalTimeout %v is below 1s", ErrConfig, c.HandshakeApprovalTimeout)
	}
	for _, n := range []struct {
		name         string
		value, limit int
	}{
		{"MaxConnections", c.MaxConnections, maxConnections},
		{"MaxHandshaking", c.MaxHandshaking, maxConnections},
		{"MaxHandshakingPerSource", c.MaxHandshakingPerSource, maxConnections},
		{"MaxSnapshotLen", c.MaxSnapshotLen, utp.MaxFragmentCapacity - maxHeaderLen},
		{"CommandsPerDatagram", c.CommandsPerDatagram, 32},
		{"MaxRPCQueue", c.MaxRPCQueue, math.MaxInt},
		{"MaxRPCLen", c.MaxRPCLen, rpcLenLimit},
	} {
		if n.value < 0 || n.value > n.limit {
			return fmt.Errorf("%w: %s is %d, not within 1 and %d", ErrConfig, n.name, n.value, n.limit)
		}
	}
	if err := c.Conditions.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	transport := c.transport(0)
	transport.DisconnectTimeout = c.DisconnectTimeout
	if _, err := utp.New(transport); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// transport returns the configuration of the layer below.
func (c Config) transport(overhead int) utp.Config {
	t := utp.NetcodeForEntities()
	t.ValidateAddresses = true
	t.Overhead = overhead
	t.FragmentCapacity = c.MaxSnapshotLen + maxHeaderLen
	t.SendQueue = min(max(sendsPerConnection*c.MaxConnections, minSendQueue), maxSendQueue)
	t.MaxConnections, t.MaxHalfOpen, t.MaxHalfOpenPerSource = c.MaxConnections, c.MaxHandshaking, c.MaxHandshakingPerSource
	t.MaxMessageSize, t.MaxResendTime = c.MaxMessageSize, c.MaxResendTime
	t.ConnectTimeout, t.ConnectAttempts = c.ConnectTimeout, c.ConnectAttempts
	t.HeartbeatTimeout = c.HeartbeatTimeout
	t.DisconnectTimeout = NoTimeout // Driver.expire counts it, and tells the peer the reason.
	t.Rand = c.Rand
	return t
}
