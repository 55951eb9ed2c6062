// Package fastpath relays RELAYs between plain UDP endpoints in the kernel, before they
// reach a socket: a program of BPF at the tc hook of the interfaces that decides as a
// worker of package engine decides, on the same memory, and leaves to workers what it does
// not decide. Its effect is that of the workers; see docs/fast-path.md for what it saves,
// what it needs, and what it bypasses.
//
//	path := fastpath.New(fastpath.Config{})
//	srv, err := engine.New(engine.Config{FastPath: path}, sealer) // errors.Is(err, fastpath.ErrUnavailable)
//
// It is for Linux 6.6 and later on amd64, and needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON
// until New has returned. Elsewhere New of package engine returns ErrUnavailable.
package fastpath

import (
	"errors"
	"log/slog"
	"os"

	"github.com/ferryrelay/ferry/engine"
)

// ErrUnavailable: the kernel, its policy or the platform refuses the fast path. What wraps
// it says why.
var ErrUnavailable = errors.New("the fast path is not available")

// Mode is where the program handles what an interface receives.
type Mode uint8

const (
	// TC is the tc hook, after the driver: any Ethernet interface, VLANs, bonds and bridges
	// included. Linux 6.6.
	TC Mode = iota
	// Native is XDP in the driver, which must support it, and sends by the same interface or
	// by another one that the program serves. Attaching may reset the card. Linux 5.18.
	Native
)

// String returns "tc" or "native".
func (m Mode) String() string {
	if m == Native {
		return "native"
	}
	return "tc"
}

// Config configures a [Path].
type Config struct {
	// Interfaces are the names of the interfaces that the program serves. Default: all
	// Ethernet interfaces with a listen address.
	Interfaces []string
	// Mode is where the program is attached.
	Mode Mode
	// Auto serves where nothing is in the way: Load succeeds before an interface has a listen
	// address and where one of several refuses the program, and the program is off while
	// nftables has rules for what this machine sends, by which its datagrams would pass.
	// Linux only.
	Auto bool
	// Link returns the attachment to an interface, by its index, of the process that this one
	// takes over from, see [Path.Links], and nil if there is none. Load calls it. Nil: this is
	// a process of its own.
	Link func(ifindex int) *os.File
	// Logger receives a line for each interface that is served, and faults. Nil: no log.
	Logger *slog.Logger
}

// Path is a fast path for one [engine.Server], see [engine.Config].FastPath. Any goroutine may
// call its methods.
type Path struct{ path *path }

var _ engine.FastPath = (*Path)(nil)

// New returns a fast path that is not loaded yet.
func New(cfg Config) *Path { return &Path{newPath(cfg)} }

// FastPathDriver implements [engine.FastPath].
func (p *Path) FastPathDriver() any { return p.path }

// Counts implements [engine.FastPath].
func (p *Path) Counts() engine.FastPathCounts { return p.path.counts() }

// SetEnabled lets the program relay, as it does at first, or leave everything to workers. A
// driver that dropped what it sent gets another chance.
func (p *Path) SetEnabled(on bool) { p.path.setEnabled(on) }

// Links returns the attachments that the program keeps in another process, see Config.Link, by
// the index of the interface: those of Native, where two programs have no room. The caller
// closes them.
func (p *Path) Links() (map[int]*os.File, error) { return p.path.links() }

// Size returns how many bytes of the kernel's memory the program takes, at the start.
func (p *Path) Size() int64 { return p.path.size() }

// Finding is a result of [Check]: Subject is what was looked at, Finding its state, Change what
// to do, empty if nothing, and Because the reason.
type Finding struct{ Subject, Finding, Change, Because string }
