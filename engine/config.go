package engine

import (
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// Config says how a relay behaves. The zero value of every field means its
// default. It is not modified after New.
type Config struct {
	// Listen are the addresses of the relay's UDP sockets, one port number for
	// all if a port is 0. Default: 127.0.0.1 with a free port.
	Listen []netip.AddrPort
	// Workers is the number of sockets and threads per listen address. Default:
	// the number of processors that Go may use. While GOMAXPROCS is larger than
	// the number of all workers, a busy worker keeps its processor of Go's
	// scheduler, which saves much of the cost of waking up; so a process that is
	// mostly a relay sets GOMAXPROCS to one more before it calls New.
	Workers int
	// Batch is the number of datagrams per system call. Default 64, at most 256.
	Batch int
	// ReceiveDelay lets a worker rest for so long before it receives again, so
	// that several datagrams come per wake-up, when enough of them come to be
	// worth it and not so many that the queue is deep. It is added to the
	// latency of those datagrams. Default 0: never; at most 10 ms.
	ReceiveDelay time.Duration
	// Unmerged sends every datagram as a message of its own; for measurements.
	Unmerged bool
	// ReadBuffer and WriteBuffer are the sizes of the sockets' buffers in
	// bytes. Default: see sock.Config.
	ReadBuffer, WriteBuffer int

	// MaxAllocations is how many allocations the relay holds at once. Default
	// table.DefaultMaxAllocations.
	MaxAllocations int
	// MaxSeats is how many seats there are for new hosts: each takes one and one
	// for each player that it asks for. Default 0: no limit. See [Stats].Seats.
	MaxSeats int
	// MaxConnections is the ceiling of players that a host may ask for.
	// Default 100, as published for the original; at most 65,535.
	MaxConnections int
	// MaxContent is the largest content of a RELAY in bytes. Default 1400, as
	// published; at most 1434, beyond which no client sends.
	MaxContent int

	// IdleTimeout ends an allocation that neither sent nor received for so
	// long. Default 10 s. All time-outs are rounded up to 250 ms.
	IdleTimeout time.Duration
	// HostAloneTimeout is the idle time-out of a bound host before its first
	// link. Default 60 s.
	HostAloneTimeout time.Duration
	// BindTimeout ends an allocation that was reserved and never bound.
	// Default 10 s.
	BindTimeout time.Duration
	// HearTimeout ends an allocation whose owner itself sent nothing for so
	// long, or for the idle time-out in force if that is longer, whatever it
	// was sent. Default 30 s.
	HearTimeout time.Duration

	// Limits bound what clients may do.
	Limits Limits
	// Unlimited switches off Limits and the budgets of ERROR replies; the rules
	// stay. For tests and development.
	Unlimited bool

	// AllowPrivateSources lets clients in from private networks although players
	// are told a public address. While they are told none, it is so anyway.
	AllowPrivateSources bool
	// Siblings are the UDP addresses of other relays, from which no datagram is
	// handled, so that nobody makes relays talk to each other.
	Siblings []netip.AddrPort

	// StateFile is the path of the file in which the relay keeps what the next run
	// must know: ids, nonces, links and join codes of live allocations, but no key.
	// Its directory must exist. A file of another relay is renamed to the path
	// with ".old" added. New opens the file and keeps it open until the end of
	// Run, or Close. Empty: no file, so that an allocation that had ended may come
	// back after a restart, and a captured BIND is accepted. See
	// [Server.StateReport].
	StateFile string
	// OnStateError is called, at most once for each, with [ErrStateFull] and with
	// the error after which nothing is stored any more. New or the control
	// goroutine calls it; it must not block. The relay goes on. Nil: not called.
	OnStateError func(error)
	// RecoverFor is the time after New in which allocations of earlier runs may
	// come back. Default 60 s; negative: never.
	RecoverFor time.Duration

	// Region is what reservations are told. Default "default".
	Region string
	// Advertise is how players reach the relay. Default: one udp endpoint with
	// the first listen address.
	Advertise []alloc.ServerEndpoint

	// Records carries messages in DTLS records over the same sockets. Nil: none.
	Records Records
	// Transports are further ways in, such as WebSocket. A kind of endpoint has
	// one at most.
	Transports []Transport

	// Hooks are told what changed.
	Hooks Hooks
	// Logger is told of starts, stops and troubles, never of datagrams. Nil:
	// silent.
	Logger *slog.Logger
}

// Limits bound what one allocation may do per second, with a burst of one
// second. Zero means the default, negative unlimited.
type Limits struct {
	// JoinerDatagrams and JoinerBytes are what a joiner may relay. Default 1,000
	// datagrams, 512 KiB.
	JoinerDatagrams, JoinerBytes int
	// HostDatagrams and HostBytes are what a host may relay. Default 12,000
	// datagrams (100 players at 60 Hz, twice), 8 MiB.
	HostDatagrams, HostBytes int
	// UnprovenBytes is how much may go to an endpoint from which nothing but a
	// BIND has come, whose source may be forged. Default 256 KiB.
	UnvalidatedBytes int
}

// rules are the configured limits in the units of the data plane.
type rules struct {
	maxContent int
	messages   messageSizes
	bindWithin table.Tick
	idle       table.Tick
	idleAlone  table.Tick
	hear       table.Tick
	deferral   table.Tick
	linkUnused table.Tick

	recoverUntil, recoverFor int64 // ms
}

// linkUnused is how long a link lives over which nobody has relayed yet, so
// that tickets alone do not fill a host's places.
const linkUnused = 10 * time.Second

// nonceDeferral is how long an allocation lives on after an authentic BIND of
// its owner that failed for its nonce, once.
const nonceDeferral = 60 * time.Second

// maxReceiveDelay is more than any game would want to wait.
const maxReceiveDelay = 10 * time.Millisecond

// maxMaxConnections keeps counts of links in 16 bits.
const maxMaxConnections = 1<<16 - 1

// DefaultMaxConnections is the ceiling of players besides the host.
const DefaultMaxConnections = alloc.DefaultMaxConnections

func (c *Config) rules() rules {
	window := max(or(c.RecoverFor, 60*time.Second), 0).Milliseconds()
	return rules{
		recoverUntil: clockStart + window, recoverFor: window,
		linkUnused: ticks(linkUnused),

		maxContent: or(c.MaxContent, proto.DefaultMaxContent),
		messages:   c.messageSizes(),
		bindWithin: ticks(or(c.BindTimeout, 10*time.Second)),
		idle:       ticks(or(c.IdleTimeout, 10*time.Second)),
		idleAlone:  ticks(or(c.HostAloneTimeout, 60*time.Second)),
		hear:       ticks(or(c.HearTimeout, 30*time.Second)),
		deferral:   ticks(nonceDeferral),
	}
}

// withDefaults turns what is unlimited into what no rate reaches.
func (l Limits) withDefaults(unlimited bool) Limits {
	for _, f := range []struct {
		value     *int
		otherwise int
		endless   int
	}{
		{&l.JoinerDatagrams, 1000, 0}, {&l.JoinerBytes, 512 << 10, 0},
		{&l.HostDatagrams, 12_000, 0}, {&l.HostBytes, 8 << 20, 0},
		{&l.UnvalidatedBytes, 256 << 10, math.MaxInt32},
	} {
		*f.value = or(*f.value, f.otherwise)
		if unlimited || *f.value < 0 {
			*f.value = f.endless
		}
	}
	return l
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// ticks rounds up.
func ticks(d time.Duration) table.Tick {
	const tick = table.TickMillis * time.Millisecond
	return table.Tick((d + tick - 1) / tick)
}

// validate returns the first problem, with the field's name.
func (c *Config) validate() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{
		{"Workers", c.Workers, 256},
		{"Batch", c.Batch, 256},
		{"ReadBuffer", c.ReadBuffer, 1 << 30},
		{"WriteBuffer", c.WriteBuffer, 1 << 30},
		{"MaxAllocations", c.MaxAllocations, 1 << 26},
		{"MaxSeats", c.MaxSeats, maxMaxSeats},
		{"MaxConnections", c.MaxConnections, maxMaxConnections},
		{"MaxContent", c.MaxContent, proto.MaxContent},
		{"Listen", len(c.Listen), 255},
	} {
		if f.value < 0 || f.value > f.max {
			return fmt.Errorf("engine: Config.%s is %d, want 0 to %d", f.name, f.value, f.max)
		}
	}
	if c.ReceiveDelay < 0 || c.ReceiveDelay > maxReceiveDelay {
		return fmt.Errorf("engine: Config.ReceiveDelay is %v, want 0 to %v", c.ReceiveDelay, maxReceiveDelay)
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"IdleTimeout", c.IdleTimeout},
		{"HostAloneTimeout", c.HostAloneTimeout},
		{"BindTimeout", c.BindTimeout},
		{"HearTimeout", c.HearTimeout},
	} {
		if f.value < 0 || f.value > 24*time.Hour {
			return fmt.Errorf("engine: Config.%s is %v, want 0 to 24h", f.name, f.value)
		}
	}
	return nil
}

// Hooks are called by the control goroutine when something has changed, with
// no lock held. All are optional. They must not block: while one runs, nobody
// can bind. There is no hook per relayed datagram; [Stats] is for that.
type Hooks struct {
	OnBind       func(BindEvent)
	OnConnect    func(ConnectEvent)
	OnDisconnect func(DisconnectEvent)
	OnEnd        func(EndEvent)
	OnReturn     func(ReturnEvent)
	// OnLargeMessage is called once per match.
	OnLargeMessage func(LargeMessageEvent)
}

// BindEvent: an allocation was bound to an endpoint, for the first time or
// after its player roamed.
type BindEvent struct {
	ID    proto.AllocationID
	Role  alloc.Role
	From  netip.AddrPort
	First bool
}

// ConnectEvent: a link was opened.
type ConnectEvent struct{ Host, Joiner proto.AllocationID }

// DisconnectEvent: From closed its link with To.
type DisconnectEvent struct{ From, To proto.AllocationID }

// ReturnEvent: a host of the run before came back.
type ReturnEvent struct {
	ID             proto.AllocationID
	Tenant         uint64 // alloc.Tenant.Hash
	MaxConnections int
}

// LargeMessageEvent: a message is larger than what every client takes by the
// receiver's way. It is the first one of its match.
type LargeMessageEvent struct {
	Match            proto.AllocationID // id of the host
	From, To         proto.AllocationID
	FromKind, ToKind endpoint.Kind
	// Size of the message, and Limit that it exceeds, in bytes with all headers
	// of the relay protocol, without those of the way.
	Size, Limit int
	// Dropped: it was not forwarded, as all such messages from now on. Else it
	// was, and the receiver's client may drop it.
	Dropped bool
}

// EndEvent: an allocation ended, and its links with it.
type EndEvent struct {
	ID     proto.AllocationID
	Role   alloc.Role
	Reason EndReason
}

// EndReason says why an allocation ended.
type EndReason uint8

const (
	// EndExpired: nobody bound it in time, or it was silent for too long.
	EndExpired EndReason = iota
	// EndClosed: its owner sent CLOSE.
	EndClosed
	// EndLost: it was there before a restart and did not come back in time.
	EndLost
	// EndOperator: closed by the operator, or a reservation that was cancelled.
	EndOperator
)

// String returns "expired", "closed", "lost" or "closed by the operator".
func (r EndReason) String() string {
	switch r {
	case EndClosed:
		return "closed"
	case EndLost:
		return "lost"
	case EndOperator:
		return "closed by the operator"
	}
	return "expired"
}
