package netcode

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// NoTimeout disables a timeout, in the fields of Config that name it.
const NoTimeout = utp.NoTimeout

// Config configures a Driver. Negative values are invalid, except NoTimeout.
type Config struct {
	// Link carries the datagrams; the driver owns it from NewServer or NewClient
	// on. Nil means that Open makes one when it is needed.
	Link link.Link
	// Open makes the link of Listen, at the address to listen at, or of Connect,
	// at nowhere. Nil means a UDP socket, for Connect one of the server's family.
	Open func(local address.Addr) (link.Link, error)
	// Transport is the layer below. The driver sets its Pipelines, Overhead,
	// MaxConnections, MaxHalfOpen and ValidateAddresses, and its FragmentCapacity to
	// 16 KiB if that is 0. Window must be the same on both sides. Of one address,
	// MaxHalfOpenPerSource clients may be in handshake or approval at a time; a further
	// one gets no answer meanwhile, and asks again.
	Transport utp.Config

	// HandshakeApprovalTimeout is how long a client may take from the proof of its
	// address, which comes with its version, until it is connected, handshake and approval
	// together. 0 means 5 s, the minimum is 1 s. On a client it counts in StateApproval
	// alone.
	HandshakeApprovalTimeout time.Duration
	// ClientHandshakeTimeout is how long a client stays in StateHandshake, since
	// it does not know the server's limit. 0 means 30 s; NoTimeout leaves it to the
	// silence of the server.
	ClientHandshakeTimeout time.Duration
	// RequireApproval makes a server ask its game about each client, see
	// Conn.Approve. It is fixed once the server listens.
	RequireApproval bool

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

	// MaxConnections bounds the clients of a server. 0 means 1024, the limit is
	// 65536. One above it is refused by a disconnect.
	MaxConnections int
	// MaxHandshaking bounds those of them that are in handshake or approval. 0 means
	// 256. One above it is refused by a disconnect and is no event. A client has such a
	// place from when it has proven its address, so forged requests take none.
	MaxHandshaking int
	// MaxRPCQueue bounds the RPCs in bytes that wait to be sent to one peer. 0
	// means 256 KiB.
	MaxRPCQueue int
	// MaxRPCLen bounds the payload in bytes of an RPC that needs more than one packet, sent
	// or received. 0 means 64 KiB, the limit is 1 MiB. A peer that announces a larger one is
	// disconnected with ReasonInvalidRPC. Each connection may hold this much for an RPC that
	// has not arrived completely, and never more than twice what has arrived of it.
	MaxRPCLen int
	// CommandsPerDatagram is how many commands a client sends at once: the newest and, as far
	// as they fit, the ones before it again. 0 means 4, 1 repeats none, the limit is 32.
	CommandsPerDatagram int
	// MaxReceive bounds the datagrams that one Update takes. 0 means 4096; more
	// stay in the link.
	MaxReceive int
	// NoCloseNotice ends connections without sending the reason, as Unity
	// does. A notice delays the end by up to 250 ms in the background.
	NoCloseNotice bool

	// Auto makes the first Update listen or connect.
	Auto AutoConnect
	// Rand gives the tokens of connections. Nil means crypto/rand.
	Rand io.Reader
	// Logger logs changes of connections, not datagrams. Nil disables logs.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Open == nil {
		c.Open = openUDP
	}
	c.HandshakeApprovalTimeout = orDefault(c.HandshakeApprovalTimeout, 5*time.Second)
	c.ClientHandshakeTimeout = orDefault(c.ClientHandshakeTimeout, 30*time.Second)
	c.MaxConnections = orDefault(c.MaxConnections, 1024)
	c.MaxHandshaking = orDefault(c.MaxHandshaking, 256)
	c.MaxRPCQueue = orDefault(c.MaxRPCQueue, 256<<10)
	c.MaxRPCLen = orDefault(c.MaxRPCLen, 64<<10)
	c.MaxReceive = orDefault(c.MaxReceive, 4096)
	c.CommandsPerDatagram = orDefault(c.CommandsPerDatagram, 4)
	if c.RPCs == nil {
		c.RPCs = new(RPCRegistry)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Auto = c.Auto.withDefaults()
	return c
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

func (c Config) check() error {
	if c.HandshakeApprovalTimeout < time.Second {
		return fmt.Errorf("%w: HandshakeApprovalTimeout %v is below 1s", ErrConfig, c.HandshakeApprovalTimeout)
	}
	if c.ClientHandshakeTimeout < 0 && c.ClientHandshakeTimeout != NoTimeout {
		return fmt.Errorf("%w: ClientHandshakeTimeout is %v", ErrConfig, c.ClientHandshakeTimeout)
	}
	if min(c.MaxConnections, c.MaxHandshaking, c.MaxRPCQueue, c.MaxRPCLen, c.MaxReceive, c.CommandsPerDatagram) < 0 {
		return fmt.Errorf("%w: a limit is negative", ErrConfig)
	}
	if c.MaxRPCLen > rpcLenLimit {
		return fmt.Errorf("%w: MaxRPCLen %d is above 1 MiB", ErrConfig, c.MaxRPCLen)
	}
	if c.CommandsPerDatagram > 32 {
		return fmt.Errorf("%w: CommandsPerDatagram %d is above 32", ErrConfig, c.CommandsPerDatagram)
	}
	if t := c.Transport; t.Pipelines != nil || t.Overhead != 0 || t.MaxConnections != 0 || t.MaxHalfOpen != 0 {
		return fmt.Errorf("%w: Pipelines, Overhead, MaxConnections and MaxHalfOpen of the transport are the driver's", ErrConfig)
	}
	if _, err := utp.New(c.transport(0)); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// transport returns the configuration of the layer below.
func (c Config) transport(overhead int) utp.Config {
	preset := utp.NetcodeForEntities()
	t := c.Transport
	t.Pipelines = slices.Clone(preset.Pipelines)
	t.Overhead = overhead
	t.FragmentCapacity = orDefault(t.FragmentCapacity, preset.FragmentCapacity)
	t.MaxConnections, t.MaxHalfOpen = c.MaxConnections, c.MaxHandshaking
	t.ValidateAddresses = true
	if t.Rand == nil {
		t.Rand = c.Rand
	}
	return t
}

func openUDP(local address.Addr) (link.Link, error) {
	ap, ok := local.UDP()
	if local.IsValid() && !ok {
		return nil, ErrAddr
	}
	return link.OpenUDP(ap)
}
