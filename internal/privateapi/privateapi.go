// Package privateapi is what this module's own programs use of a relay, and programs that embed one
// do not: the hand-over to another process, captures, join codes and what an operator asks. It may
// change in any version.
package privateapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Relay is an engine.Server. Any goroutine may call its methods; the errors of those that take a
// context are those of every call of a Server, and the ones named here.
type Relay interface {
	// PrepareHandOver returns what another process needs to take this relay over. The caller
	// closes the sockets. Errors: ErrRecovering, errors.ErrUnsupported.
	PrepareHandOver(ctx context.Context) (*Handover, error)
	// HandOver ends Run, which returns nil, and writes the state that the Run of another process
	// continues with. Players get nothing; sessions of transports end with the process. Further
	// errors: those of to. If ctx ends after the call has begun, Run ends all the same.
	HandOver(ctx context.Context, to io.Writer) error

	// Capture calls each for the messages between the relay and the players of a match, until ctx
	// ends or each returns an error, which it returns. The id is that of the host or a player. It
	// reports how many messages it lost because each was too slow. A relay has one capture at a
	// time; while it runs, the match leaves the fast path, and each datagram costs the worker a
	// look-up. Errors: alloc.ErrNotFound, ErrCapture.
	Capture(ctx context.Context, id proto.AllocationID, each func(*Captured) error) (lost uint64, err error)

	// KeepCode writes the join code of a live host to the state file, if there is one, so that it
	// survives a crash, and calls Hooks.OnCode. Errors: alloc.ErrNotFound, alloc.ErrCodeMalformed.
	KeepCode(ctx context.Context, id proto.AllocationID, code string) error
	// KeptCodes returns the join codes of hosts of the previous run that may come back, and of
	// another process that hands over. It must be called before Run, or in Handover.OnResume.
	KeptCodes() []KeptCode
	// StateReport returns what New found in the state file. It does not change.
	StateReport() StateReport
	// Presence returns whether an allocation is live or may come back, and its role if it is
	// Awaited.
	Presence(ctx context.Context, id proto.AllocationID) (p Presence, role alloc.Role, err error)

	// Check sends datagrams to itself through the UDP sockets of every listen address and waits
	// for the answers, until ctx ends and no longer than 1.5 s for each address. It proves that
	// datagrams come in, are handled and go out.
	Check(ctx context.Context) error
	// Projects returns the usage of the named projects, or of all if none is named, in no order,
	// without those that have used nothing lately.
	Projects(ctx context.Context, names ...string) ([]ProjectUsage, error)
}

var (
	// ErrHandover is wrapped by the errors of New and Run about the relay of the other process.
	ErrHandover = errors.New("engine: the relay of another process cannot be taken over")
	// ErrRecovering: allocations of an earlier run may still come back.
	ErrRecovering = errors.New("engine: allocations of an earlier run may still come back")
	// ErrCapture: another capture runs.
	ErrCapture = errors.New("engine: another capture runs at this relay")
	// ErrListen is wrapped by the error of New about an address of Config.Listen.
	ErrListen = errors.New("engine: listen")

	// ErrStateFull: the state file has no room for another allocation. It has room for twice
	// Config.MaxAllocations, at most 16,777,216.
	ErrStateFull = errors.New("statefile: full")
	// ErrStateAbsent: there was no state file.
	ErrStateAbsent = errors.New("statefile: no state file was there")
	// ErrStateRolledBack: the state file lacks the last changes: an older copy was put in its
	// place, or a run could not open it.
	ErrStateRolledBack = errors.New("statefile: rolled back: it lacks the last changes, as an older copy does")
)

// Config is of engine.Config.
type Config struct {
	// Handover takes the relay of another process over, see Relay.PrepareHandOver.
	Handover *Handover
	// OnStateError is called with ErrStateFull and with the error after which changes are not
	// stored in the state file, and OnStateComplete when it has been written anew. New or the
	// control goroutine calls them; they must not block.
	OnStateError    func(error)
	OnStateComplete func()
}

// Handover is what engine.New needs of a relay that another process hands over, on Linux only. As
// JSON it is without its sockets, which are passed as files, and its functions.
type Handover struct {
	Version int
	// Boot is that of engine.Identity: both processes are one run.
	Boot uint64
	// Started is when the relay's clock began, in nanoseconds of CLOCK_MONOTONIC.
	Started int64
	// Listen are the addresses of the sockets, by listener.
	Listen []netip.AddrPort
	// New needs room for so many Allocations, and these Transports in that order.
	Allocations int
	Transports  []string
	StateSize   int
	// Sockets are those of each listener. New takes them over, also if it fails.
	Sockets [][]*os.File `json:"-"`
	// Receive waits until the other process has stopped, and returns what its HandOver wrote.
	Receive func(context.Context) (io.Reader, error) `json:"-"`
	// OnResume is called when Run relays and has opened the state file, before BINDs, CONNECTs and
	// calls.
	OnResume func() `json:"-"`
}

// Close closes the sockets of a relay that New did not take over.
func (o *Handover) Close() {
	for _, files := range o.Sockets {
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// Captured is one message of a match that the relay received or sent.
type Captured struct {
	Time time.Time
	// Sent: the relay sent it; otherwise it received it.
	Sent bool
	// Outcome is that of a received message, as in engine.Stats.Outcomes; or Dropped is why it was
	// dropped, as in its Drops. Neither: the capture ended before it was known.
	Outcome, Dropped string
	// Transport is that of engine.Allocation, and Player the player's address at plain UDP. In a
	// session the address is invalid, Session is the number of the session, and the message is
	// that in the session.
	Transport string
	Player    netip.AddrPort
	Session   uint64
	// Relay is the relay's address at plain UDP, and invalid if the kernel chooses it.
	Relay netip.AddrPort
	// Message has zeros in place of connection data and HMACs.
	Message []byte
}

// Hooks are called as engine.Hooks are.
type Hooks struct {
	OnPlayerLimit func(PlayerLimitEvent)
	// OnCode is called when a live host gets a join code, its own or that of the host whose place
	// it took.
	OnCode func(CodeEvent)
	// OnRefuse is called for a refused message of a known allocation, at most 5 times a second for
	// a source prefix and 50 for a worker, so that a flood costs nothing, and once in 5 s for a
	// receiver whose path may not take more (Outcome "unvalidated"); not for what the kernel drops.
	OnRefuse func(RefuseEvent)
	// OnLargeMessage is called once per match.
	OnLargeMessage func(LargeMessageEvent)
}

// PlayerLimitEvent reports a reservation that Config.PlayerLimits refused.
type PlayerLimitEvent struct {
	Limit string // that of alloc.PlayerLimitError
	// Newest is the player's newest live allocation of that role, zero if it has none.
	Newest proto.AllocationID
	Host   proto.AllocationID // that the player would join; zero for a host
}

// CodeEvent reports that a host has got a join code.
type CodeEvent struct {
	Host proto.AllocationID
	Code string
}

// RefuseEvent reports a message that was refused. It may be forged, unless its Outcome is
// one that follows the check of a signature.
type RefuseEvent struct {
	// ID is the allocation of a BIND's connection data, else the sender, or whom the message names
	// as its sender.
	ID proto.AllocationID
	// Peer is the other allocation that the message names.
	Peer proto.AllocationID
	// From is invalid for sessions of DTLS and WebSocket.
	From    netip.AddrPort
	Message proto.Type
	Outcome string // as in engine.Stats.Outcomes or Drops
}

// LargeMessageEvent reports the first message of a match that is larger than what
// every client behind the receiver's transport accepts.
type LargeMessageEvent struct {
	Match                      proto.AllocationID // id of the host
	From, To                   proto.AllocationID
	FromTransport, ToTransport string // names of transports, or "udp4", "udp6" and "dtls"
	// Size of the message and the Limit that it exceeds, in bytes without headers of the
	// transport.
	Size, Limit int
	// Dropped: all messages of that size are dropped. If not, the receiver's client may drop them.
	Dropped bool
}

// Stats are more of engine.Stats.
type Stats struct {
	// BatchSizes counts receive batches of 1, 2, 3-4, 5-8, and so on to 129-256 datagrams.
	BatchSizes []uint64
	// StateComplete is set while the state file has all that the next run must know.
	StateComplete bool
	// PlayerReplaced counts the allocations that ended for their player's next one.
	PlayerReplaced uint64
	// Stalls counts the times in which the process was stalled for more than a second,
	// ExpiryPauses those in which expiry paused, as it does while ExpiryPaused is set.
	Stalls, ExpiryPauses uint64
	ExpiryPaused         bool
	// SlowChanges counts the changes of the state file that waited for its disk for 10 ms or more,
	// while no client was bound or connected.
	SlowChanges uint64
	// WorkersUnderLoad have so many commands waiting that they limit those of each source prefix.
	WorkersUnderLoad int
	// Workers are those of the sockets first, which shows how the kernel spreads the load.
	Workers  []WorkerStats
	FastPath FastPathCounts
}

type WorkerStats struct {
	Received uint64
	// Transport is empty for the worker of a socket.
	Transport string
	// Busy is set while the worker handles a batch, and Batches counts those that it began: busy
	// at the same count for long, it is stuck.
	Busy    bool
	Batches uint64
	// CPU is the time of the worker's thread, in steps of a second; 0 if it is not known, as for a
	// transport.
	CPU time.Duration
}

// FastPath is a fastpath.Path. Any goroutine may call its methods.
type FastPath interface {
	Counts() FastPathCounts
	// SetEnabled lets the program relay, as it does at first, or leave everything to workers. A
	// driver that dropped what it sent gets another chance.
	SetEnabled(on bool)
	// Links returns the attachments that the program keeps in another process, see
	// fastpath.Config.Link, by the index of the interface: those of XDP in the driver, where two
	// programs have no room. The caller closes them.
	Links() (map[int]*os.File, error)
	// Size returns how many bytes of the kernel's memory the program takes, at the start.
	Size() int64
	// Check says whether this process could use the fast path on this machine, for a relay that
	// listens on these addresses. It attaches nothing, and needs no Load.
	Check(listen []netip.AddrPort) []Finding
}

// Finding is a result of FastPath.Check: Subject is what was looked at, Finding its state, Change
// what to do, empty if nothing, and Because the reason.
type Finding struct{ Subject, Finding, Change, Because string }

// FastPathCounts are counts since New.
type FastPathCounts struct {
	// Datagrams and Bytes were relayed in the kernel. Received, Sent and the outcome "relayed" of
	// engine.Stats contain them.
	Datagrams, Bytes uint64
	// Passed are RELAYs that were left to workers, by reason.
	Passed map[string]uint64
	// NoNextHop are endpoints to which the program does not send, by reason, since the last change
	// of the network.
	NoNextHop map[string]uint64
	// FilterChanges are the times that filters of the kernel changed, and the program left all to
	// workers until they had heard of an endpoint again. Changes of one tick of 250 ms count as one.
	FilterChanges uint64
	// Interfaces are those that the program serves, at Mode, "tc" or "native"; On is false
	// while it leaves everything to workers.
	Interfaces []string
	Mode       string
	On         bool
	OffBecause string // the rest of a sentence; "" while it is on
}

// SafeMessage is the size in bytes of the largest message that all real clients accept over
// DTLS: in a record it has 1,400, the default maxMessageSize of UTP 2.x.
const SafeMessage = 1363

// DTLS is a dtls.Records, whose session file is an F.
type DTLS[F any] interface {
	// HandOver lowers the bounds in the session file to what was used, so that the next process
	// loses no record. It must be called after the end of the relay, and before the file is closed.
	HandOver() DTLSHandover
	// TakeOver makes a file that another process has just closed that of the sessions, see
	// dtls.Config. Those in c are connected: the relay does not wait for a record of them. It
	// must be called before the relay runs. A nil file: there is none. Error: Sources that HandOver
	// has not written.
	TakeOver(file F, c DTLSHandover) error
}

// DTLSHandover has the sessions of a process that hands over, besides what is in its session file.
type DTLSHandover struct {
	Sources json.RawMessage // the clients' addresses
	Slots   int             // of the file that may hold a session, at least 1
}

// WebSocketBytes is the most that waits for a client, one half in the relay and one in the kernel.
const WebSocketBytes = 256 << 10

// WebSocket is a websocket.Transport. It hands its connections over to another process, which
// has the relay from then on: this one keeps them, and passes messages on.
type WebSocket interface {
	// ConnectionsFrom returns the number of open connections from a network.
	ConnectionsFrom(network netip.Prefix) int
	// Links returns what another process needs to reach all connections: the links of this one, and
	// last the far end of a new link to this one, whose near end is to be given to Detach.
	Links() (links []syscall.Conn, far, near *os.File, err error)
	// Detach makes this transport keep its connections for the process that takes over, which has
	// the other end of ours: their messages wait in the link. What is sent to them still arrives.
	// Run then ends without closing them, and Drain serves them. It returns the state for TakeOver.
	Detach(ours *os.File) (json.RawMessage, error)
	// TakeOver takes the links over that another process has, with the connections behind them, of
	// which Detach of the other one returned the state. It must be called before Run. The files
	// belong to the transport, in the order of Links.
	TakeOver(files []*os.File, state json.RawMessage) error
	// Drain serves the connections after Detach until all have ended, or the process that has the
	// relay has; then, or when ctx ends, it closes the others.
	Drain(ctx context.Context)
}

// KeptCode is a join code that the previous run wrote to the state file.
type KeptCode struct {
	Tenant uint64 // alloc.Tenant.Hash
	Host   proto.AllocationID
	Code   string
}

// StateReport describes what New found in the state file.
type StateReport struct {
	// Opened: the file was opened, perhaps without permission to write.
	Opened bool
	// Allocations are those that the previous run left.
	Allocations int
	// Complete: all that the previous run stored is there, so recovery is strict. If not, Err says
	// why.
	Complete bool
	// Damaged is the number of records that could not be read.
	Damaged int
	// Closed is when the previous run closed the file; zero if it was killed, or the file is not
	// complete. A time before the end of that run means that file and counter are older copies.
	Closed time.Time
	// Err is nil if the file is complete or Recovery.StateFile is empty, and wraps ErrStateAbsent
	// if there was no file and ErrStateRolledBack if it lacks the last changes. The relay runs all
	// the same.
	Err error
}

// Presence says whether an allocation is live, or may come back after a restart.
type Presence uint8

// The kinds of presence.
const (
	Absent      Presence = iota // not live, and it will not come back
	MayComeBack                 // not live; it is not known whether it was before the restart
	Awaited                     // not live; the state file says that it was before the restart, and its role
	Live                        // it has come back, or is of this run
)

// ProjectUsage is what a project uses in all its environments, exact for any number of tenants.
type ProjectUsage struct {
	Project              string
	Allocations, Players int
	// Bytes is at least what its players' RELAYs had that were forwarded, without UDP and IP
	// headers: while an allocation of the project has no counters of its own, see engine.Usage, it
	// increases by the bytes of all such allocations. Without live allocations it may begin again
	// at zero.
	Bytes uint64
}
