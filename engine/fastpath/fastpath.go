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
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

// ErrUnavailable: the kernel, its policy or the platform refuses the fast path. What wraps
// it says why.
var ErrUnavailable = errors.New("the fast path is not available")

// Config configures a [Path].
type Config struct {
	// Interfaces are the names of the interfaces that the program serves. Default: all
	// Ethernet interfaces with a listen address.
	Interfaces []string
	// Native is XDP in the driver, which must support it, and sends by the same interface or
	// by another one that the program serves. Attaching may reset the card. Linux 5.18. Default:
	// the tc hook, after the driver, at any Ethernet interface, VLANs, bonds and bridges included.
	Native bool
	// Auto serves where nothing is in the way: New of package engine succeeds without the fast
	// path, before an interface has a listen address, and where one of several refuses the
	// program, and the program is off while nftables has rules for what this machine sends, by
	// which its datagrams would pass. Linux only.
	Auto bool
	// Link returns the attachment to an interface, by its index, of the process that this one
	// takes over from, and nil if there is none. Nil: this is a process of its own.
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

// Driver implements [engine.FastPath].
func (p *Path) Driver() driver.FastPath { return p.path }

// Private returns what the programs of this module use besides. It may change in any version.
func (p *Path) Private() privateapi.FastPath { return p.path }

func (c *Config) mode() string {
	if c.Native {
		return "native"
	}
	return "tc"
}

func finding(subject, state, change, because string) privateapi.Finding {
	return privateapi.Finding{Subject: subject, Finding: state, Change: change, Because: because}
}
