package engine

import (
	"cmp"
	"log/slog"
	"math"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// Config configures a relay. The zero value of each field means its default.
type Config struct {
	// Listen are the addresses of the UDP sockets, one port number for all if a port is 0.
	// Default: 127.0.0.1 with a free port.
	Listen  []netip.AddrPort
	Sockets Sockets

	// MaxAllocations is how many allocations the relay holds. Default 1,000,000.
	MaxAllocations int
	// MaxSeats limits the players that new hosts may reserve room for: each host takes one seat
	// and one for each connection that it requests. Default 0: no limit.
	MaxSeats int
	// MaxConnections is the most joiners that a host may request. Default 100; at most 65,535.
	MaxConnections int
	PlayerLimits   PlayerLimits
	// MaxContent is the largest content of a RELAY in bytes. Default 1400, as in Unity Relay; at
	// most 1434, the most that clients send.
	MaxContent int

	Timeouts Timeouts
	// HostMigration is the change of a match's host. Default: none.
	HostMigration HostMigration

	Limits Limits
	// Unlimited turns Limits, PlayerLimits and the budgets of ERROR replies off, and the limits of
	// an Allocations service of this relay and of its HTTP API, but no rule of the protocol. For
	// tests and development.
	Unlimited bool

	// AllowPrivateSources accepts datagrams from private networks although Advertise
	// has a public address. Without a public address they are always accepted.
	AllowPrivateSources bool
	// Siblings are the UDP addresses of other relays, whose datagrams are dropped, so that a
	// forged source cannot make two relays answer each other.
	Siblings []netip.AddrPort

	Recovery Recovery

	// Region is the id in reservations. Default "default".
	Region string
	// Advertise are the server endpoints in reservations, by which players reach the
	// relay. Default: one udp endpoint with the first listen address.
	Advertise []alloc.ServerEndpoint

	// Records carries messages in DTLS records over the same sockets, see package dtls. Nil: none.
	Records Records
	// Transports carry messages besides UDP, such as those of package websocket: at most 12.
	Transports []Transport

	// FastPath relays between plain UDP endpoints in the kernel, see package fastpath. Nil:
	// workers relay all. If it cannot be loaded, New fails, or logs a warning if it is optional.
	FastPath FastPath

	Hooks Hooks
	// Logger receives starts, stops and faults, no line per datagram. Nil: no log.
	Logger *slog.Logger

	// Private is for the programs of this module, see [Server.Private].
	Private privateapi.Config
}

// Sockets tunes the sockets of a relay and their workers. Zero means the default.
type Sockets struct {
	// Workers is the number of sockets and threads per listen address. Default: the number of
	// processors that Go may use. While GOMAXPROCS is larger than the number of all workers, a
	// busy worker keeps its processor of Go's scheduler, which saves much of the cost of waking
	// up: set it to at least one more before New.
	Workers int
	// WorkerCPUs pins worker i of each listen address to the i-th of these CPUs, and is the number
	// of workers unless Workers says the same. Linux only.
	WorkerCPUs []int
	// SteerByCPU makes each worker of WorkerCPUs receive the datagrams that the kernel handles on
	// its CPU, where these cover all CPUs that handle any: otherwise some workers get none.
	// Default: datagrams are spread by the hash of the client's address.
	SteerByCPU bool
	// ReceiveDelay is the longest time that a worker waits so that more datagrams share a wake-up.
	// It waits only while it measures that this saves CPU time, and not for the first of a burst.
	// It adds to the latency. Linux only. Default 0: never; at most 10 ms.
	ReceiveDelay time.Duration
	// DisableGSO turns UDP segmentation offload (GSO) off, for measurements.
	DisableGSO bool
}

// Timeouts end allocations. They are rounded up to 250 ms. Zero means the default.
type Timeouts struct {
	// Idle ends an allocation that neither sent nor received for so long. Default 10 s.
	Idle time.Duration
	// HostAlone is the idle time-out of a bound host before its first link. Default 60 s.
	HostAlone time.Duration
	// Bind ends an allocation that was reserved and never bound. Default 10 s.
	Bind time.Duration
	// Receive ends an allocation whose owner sent nothing for so long, or for its idle time-out if
	// that is longer. Default 30 s.
	Receive time.Duration
}

// HostMigration is the change of a match's host, see [Server.MigrateHost].
type HostMigration struct {
	// Window is for how long after the end of a host one of its players may take its place.
	// Default 0: never; at most 5 minutes.
	Window time.Duration
	// Silence is after how long without a message a host counts as one that has left, if a player
	// asks for its place. Default 7 s: two PING periods of Unity's clients, and a second. Keep it
	// below Timeouts.Idle, since a player that lost its host may be silent too, and must be bound
	// when it asks.
	Silence time.Duration
}

// Recovery is what a relay keeps for its next run.
type Recovery struct {
	// StateFile is the path of the file with what the next run must know: ids, nonces, links and
	// join codes of live allocations, but no key. Its directory must exist. A file of another
	// relay is renamed to the path with ".old" added; a file with ".counter" added shows whether
	// an older copy was put at the path. Neither may belong to another user, be open to others, or
	// be a link. It is open from New to the end of Run, or Close. Empty: no file, so that an
	// allocation that had ended may come back, and a captured BIND is accepted.
	StateFile string
	// Window is the time after New in which allocations of earlier runs may come back. Default
	// 60 s; negative: none.
	Window time.Duration
}

// Limits are the quotas of one allocation per second, with a burst of one second.
// Zero means the default, negative, no limit.
type Limits struct {
	// JoinerDatagrams and JoinerBytes limit the RELAYs of a joiner. Default 1,000, 512 KiB.
	JoinerDatagrams, JoinerBytes int
	// HostDatagrams and HostBytes limit the RELAYs of a host. Default 12,000 (100 players at
	// 60 Hz, twice), 8 MiB.
	HostDatagrams, HostBytes int
	// UnvalidatedBytes and UnvalidatedRatio are the anti-amplification limits (RFC 9000, section
	// 8), since the source of a datagram over plain UDP may be forged. rules.go says which paths
	// are validated.
	//
	// Of a reservation without a ClientAddress, or with one of a private network, which may be
	// that of a proxy, at most UnvalidatedBytes go to the path before a message other than a BIND
	// validates it. Default 256 KiB.
	UnvalidatedBytes int
	// Of any other, UnvalidatedRatio bytes may go to the endpoint for each byte from there, and
	// 256 kB/s besides. Default 3, as in RFC 9000; at most 1000.
	UnvalidatedRatio int
}

type rules struct {
	maxContent     int
	messages       messageSizes
	transports     *[endpoint.Kinds]string // names, by the kind of endpoints
	bindWithin     table.Tick
	idle           table.Tick
	idleAlone      table.Tick
	receiveTimeout table.Tick
	deferral       table.Tick

	recoverUntil, recoverFor int64 // ms
}

// nonceDeferral: an authentic BIND with a stale nonce defers expiry once.
const nonceDeferral = 60 * time.Second

const defaultSilence = 7 * time.Second

func (c *Config) rules() rules {
	window := max(cmp.Or(c.Recovery.Window, 60*time.Second), 0).Milliseconds()
	names := c.transportNames()
	return rules{
		recoverUntil: clockStart + window, recoverFor: window,

		maxContent:     cmp.Or(c.MaxContent, proto.DefaultMaxContent),
		messages:       c.messageSizes(),
		transports:     &names,
		bindWithin:     ticks(cmp.Or(c.Timeouts.Bind, 10*time.Second)),
		idle:           ticks(cmp.Or(c.Timeouts.Idle, 10*time.Second)),
		idleAlone:      ticks(cmp.Or(c.Timeouts.HostAlone, 60*time.Second)),
		receiveTimeout: ticks(cmp.Or(c.Timeouts.Receive, 30*time.Second)),
		deferral:       ticks(nonceDeferral),
	}
}

// An unlimited value is one that no rate reaches.
func (l Limits) withDefaults(unlimited bool) Limits {
	for _, f := range []struct {
		value     *int
		otherwise int
		endless   int
	}{
		{&l.JoinerDatagrams, 1000, 0}, {&l.JoinerBytes, 512 << 10, 0},
		{&l.HostDatagrams, 12_000, 0}, {&l.HostBytes, 8 << 20, 0},
		{&l.UnvalidatedBytes, 256 << 10, math.MaxInt32}, {&l.UnvalidatedRatio, 3, 0},
	} {
		*f.value = cmp.Or(*f.value, f.otherwise)
		if unlimited || *f.value < 0 {
			*f.value = f.endless
		}
	}
	return l
}

// ticks rounds up.
func ticks(d time.Duration) table.Tick {
	const tick = table.TickMillis * time.Millisecond
	return table.Tick((d + tick - 1) / tick)
}

// Hooks are called by the control goroutine after a change of state, with no lock held. They must
// not block: while one runs, no player can bind, and the log names one that takes longer than
// 100 ms. Methods of a Server that take a context return [alloc.ErrInHook] in a hook. A panic is
// logged with its stack, and the relay goes on. There is no hook per relayed datagram; see
// [Stats].
type Hooks struct {
	// Admit is called for each reservation with the live allocations of its project and the bound
	// ones among them. Its error refuses the reservation, as in alloc.ServiceConfig, and so does a
	// panic. No other reservation is made between the call and this one. It is not called for
	// allocations that come back after a restart.
	Admit func(project string, allocations, players int) error
	// OnReserve precedes all other events of the allocation, and the reservation's return.
	OnReserve    func(ReserveEvent)
	OnBind       func(BindEvent)
	OnConnect    func(ConnectEvent)
	OnDisconnect func(DisconnectEvent)
	OnEnd        func(EndEvent)
	// OnMigrate is called when a player has taken the place of its host, after OnEnd of the former
	// one: the join code must lead to the new host now. OnMigrationEnd is called when no player
	// can take the place any more.
	OnMigrate      func(MigrateEvent)
	OnMigrationEnd func(host proto.AllocationID)
	// OnReturn is called when an allocation of the previous run came back. A long name is cut.
	OnReturn func(ReserveEvent)

	// Private is for the programs of this module, see [Server.Private].
	Private privateapi.Hooks
}

// ReserveEvent reports that an allocation was reserved, or came back.
type ReserveEvent struct {
	ID             proto.AllocationID
	Role           alloc.Role
	Tenant         uint64             // alloc.Tenant.Hash
	Name           alloc.Tenant       // the tenant itself
	Player         string             // the player, empty if it is not known
	PlayerCut      bool               // Player is only the beginning of its name
	MaxConnections int                // of a host
	Host           proto.AllocationID // of a joiner
	Tag            uint64             // alloc.Caller.Tag
}

// Subject says about which allocation an event is. After a restart it is known once the player has
// come back.
type Subject struct {
	Match  proto.AllocationID // id of the host
	Player alloc.PlayerHash   // alloc.HashPlayer of its player
	Tag    uint64             // alloc.Caller.Tag, zero for none
}

// BindEvent reports that an allocation was bound to an endpoint, for the first time or after it
// roamed.
type BindEvent struct {
	ID    proto.AllocationID
	Role  alloc.Role
	From  netip.AddrPort // as Allocation.Endpoint
	First bool
	Subject
}

// ConnectEvent reports that a link was opened.
type ConnectEvent struct {
	Host, Joiner proto.AllocationID
	Subject      // of the joiner
}

// DisconnectEvent reports that From closed its link with To.
type DisconnectEvent struct {
	From, To proto.AllocationID
	Subject  // of From
}

// EndEvent reports that an allocation ended, and its links with it.
type EndEvent struct {
	ID     proto.AllocationID
	Role   alloc.Role
	Tenant alloc.Tenant // empty if it is not known, see [Usage]
	Reason EndReason
	// Migration: a player may take its place, until Hooks.OnMigrationEnd.
	Migration bool
	// EverBound, Age, SentDatagrams and SentBytes are those of [Allocation] at its end, and zero,
	// as Subject, if it has not come back from the previous run.
	EverBound                bool
	Age                      time.Duration
	SentDatagrams, SentBytes uint64
	Subject
}

// MigrateEvent reports that a player has taken the place of its host.
type MigrateEvent struct {
	Host    proto.AllocationID // the former one
	NewHost proto.AllocationID
	Joiner  proto.AllocationID // the player's allocation in the match that it was in
	Tenant  uint64             // alloc.Tenant.Hash
	Name    alloc.Tenant       // the tenant itself, empty if it is not known
	Code    string             // the join code
	Tag     uint64             // alloc.Caller.Tag of the player that was in the match
}

// EndReason says why an allocation ended.
type EndReason uint8

const (
	// EndExpired: it was not bound in time, or was silent for too long.
	EndExpired EndReason = iota
	// EndClosed: its owner sent CLOSE.
	EndClosed
	// EndLost: it is of the previous run and did not come back in time.
	EndLost
	// EndOperator: the operator ended it ([Server.End], [Server.Kick]).
	EndOperator
	// EndMigrated: a host was silent, and one of its players took its place.
	EndMigrated
	// EndReplaced: its player has another allocation, in its place at a full host or within
	// [PlayerLimits].
	EndReplaced
	// EndSuperseded: a reservation for the place of a host, which is not free any more.
	EndSuperseded
)

// String returns "expired", "closed", "lost", "closed by the operator", "taken over by a player",
// "replaced by its player's next one" or "superseded by another host".
func (r EndReason) String() string {
	switch r {
	case EndClosed:
		return "closed"
	case EndLost:
		return "lost"
	case EndOperator:
		return "closed by the operator"
	case EndMigrated:
		return "taken over by a player"
	case EndReplaced:
		return "replaced by its player's next one"
	case EndSuperseded:
		return "superseded by another host"
	}
	return "expired"
}
