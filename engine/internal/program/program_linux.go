//go:build linux && amd64 && !sockportable

package program

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// object is relay.c, compiled by `make fast-path-object`; CI compiles it again and
// compares.
//
//go:embed relay.o
var object []byte

// Program is the program in the kernel and the memory that it shares with the relay. Its
// maps are words that any goroutine may read; each of its users says which goroutine writes them.
type Program struct {
	entry  *ebpf.Program // relay_tc or relay_xdp
	native bool
	mu     sync.Mutex        // guards links; not held while the kernel attaches
	links  map[int]link.Link // by interface

	slabs      []table.Slab
	lines      []table.Line
	localAddrs []localAddr
	nextHops   []atomic.Uint64
	egresses   []egress
	settings   *settings
	counters   []counters
	tallies    []tally
	secret     [2]uint64
	size       int64  // bytes of all maps
	records    []byte // the memory of slabs, for tests
}

// Parameters are the constants of a program.
type Parameters struct {
	Allocations int // the table holds at most so many
	Listeners   int // listen addresses
	MaxMessage  int // bytes of the largest RELAY
	// ClockOffset is what the engine's clock shows when CLOCK_MONOTONIC shows zero.
	ClockOffset time.Duration
	Native      bool // XDP in the driver, instead of the tc hook
	TestClock   bool // the time is that of SetTestTime
}

// Load loads the program. Errors name what the kernel lacks.
func Load(p Parameters) (*Program, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("the program in this binary: %w", err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("processors: %w", err)
	}
	entry, other := "relay_tc", "relay_xdp"
	if p.Native {
		entry, other = other, entry
	}
	delete(spec.Programs, other)
	var seed [16]byte
	rand.Read(seed[:])
	prog := &Program{native: p.Native, links: make(map[int]link.Link), secret: [2]uint64{binary.LittleEndian.Uint64(seed[:8]),
		binary.LittleEndian.Uint64(seed[8:])}}
	sizes := map[string]int{
		"slabs": slabs(p.Allocations), "lines": idLines(p.Allocations), "local_addrs": p.Listeners * listenerLocals,
		"next_hops": maxNextHops, "egresses": MaxEgresses, "settings": 1, "counters": cpus, "tallies": cpus * usageRows,
	}
	for name, n := range sizes {
		spec.Maps[name].MaxEntries = uint32(n)
		prog.size += int64(n) * int64(spec.Maps[name].ValueSize)
	}
	testClock := uint32(0)
	if p.TestClock {
		testClock = 1
	}
	for name, value := range map[string]any{
		"line_mask": uint32(sizes["lines"] - 1), "secret0": prog.secret[0], "secret1": prog.secret[1],
		"max_message": uint32(p.MaxMessage), "clock_offset": int64(p.ClockOffset), "test_clock": testClock,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("constant %s of the program: %w", name, err)
		}
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		// Without CAP_PERFMON the verifier refuses what it permits otherwise.
		if missing := missingCapabilities(); len(missing) > 0 {
			return nil, fmt.Errorf("the kernel asks for the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and the process lacks %s: %w",
				strings.Join(missing, " and "), syscall.EPERM)
		}
		return nil, fmt.Errorf("the kernel refuses the program: %w", err)
	}
	defer loaded.Close()
	prog.entry, loaded.Programs[entry] = loaded.Programs[entry], nil
	if err := prog.share(loaded, sizes); err != nil {
		prog.Close()
		return nil, err
	}
	return prog, nil
}

func missingCapabilities() (names []string) {
	for _, c := range []struct {
		name       string
		capability sock.Capability
	}{{"CAP_BPF", sock.CapBPF}, {"CAP_NET_ADMIN", sock.CapNetAdmin}, {"CAP_PERFMON", sock.CapPerfmon}} {
		if !c.capability.IsGranted() {
			names = append(names, c.name)
		}
	}
	return names
}

// share maps the arrays of the program. They stay mapped as long as p is referred to, and
// a table in them refers to it.
func (p *Program) share(loaded *ebpf.Collection, sizes map[string]int) (err error) {
	one := mapArray[settings](p, loaded, sizes, "settings", &err)
	p.slabs = mapArray[table.Slab](p, loaded, sizes, "slabs", &err)
	p.lines = mapArray[table.Line](p, loaded, sizes, "lines", &err)
	p.localAddrs = mapArray[localAddr](p, loaded, sizes, "local_addrs", &err)
	p.nextHops = mapArray[atomic.Uint64](p, loaded, sizes, "next_hops", &err)
	p.egresses = mapArray[egress](p, loaded, sizes, "egresses", &err)
	p.counters = mapArray[counters](p, loaded, sizes, "counters", &err)
	p.tallies = mapArray[tally](p, loaded, sizes, "tallies", &err)
	if err == nil {
		p.settings = &one[0]
	}
	sizes["slabs"] *= int(reflect.TypeFor[table.Slab]().Size())
	p.records = mapArray[byte](p, loaded, sizes, "slabs", &err)
	return err
}

func mapArray[T any](p *Program, loaded *ebpf.Collection, sizes map[string]int, name string, err *error) []T {
	if *err != nil {
		return nil
	}
	values, unmap, mapErr := sock.MapValues[T](loaded.Maps[name].FD(), sizes[name])
	if mapErr != nil {
		*err = fmt.Errorf("map %s: %w", name, mapErr)
		return nil
	}
	runtime.AddCleanup(p, func(unmap func()) { unmap() }, unmap)
	return values
}

// Memory returns where a table that the program reads lies.
func (p *Program) Memory() table.Memory {
	return table.Memory{Slab: func(i int) *table.Slab { return &p.slabs[i] }, IDs: p.lines, IDSecret: p.secret}
}

// Attach makes the program handle what an interface receives: at its tc hook after the other
// programs there, or in its driver, where there is room for one program only. Where it is
// attached already, nothing happens. It ends with the process. The error is that of bpf(2).
func (p *Program) Attach(ifindex int) (err error) {
	p.mu.Lock()
	_, attached := p.links[ifindex]
	p.mu.Unlock()
	if attached {
		return nil
	}
	var l link.Link
	if p.native {
		l, err = link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: p.entry, Flags: link.XDPDriverMode})
	} else {
		l, err = link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p.entry, Attach: ebpf.AttachTCXIngress})
	}
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP) && p.native:
		return fmt.Errorf("its driver has no native XDP, or not with its present queues, MTU and offloads; tc works with any driver: %w", syscall.EOPNOTSUPP)
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("another program is attached to it: %w", syscall.EBUSY)
	case errors.Is(err, syscall.EINVAL) && !p.native:
		return fmt.Errorf("the kernel has no tcx, which needs Linux 6.6: %w", err)
	case err != nil:
		return err
	}
	p.keep(ifindex, l)
	return nil
}

func (p *Program) keep(ifindex int, l link.Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[ifindex] = l
}

// Replace takes the place of another process's program at an interface, by a file of its Links,
// in one step: the driver does not reset the card.
func (p *Program) Replace(ifindex int, file *os.File) error {
	fd, err := sock.DupDescriptor(int(file.Fd()))
	if err != nil {
		return err
	}
	l, err := link.NewFromFD(fd)
	if err != nil {
		return err
	}
	if err := l.Update(p.entry); err != nil {
		return errors.Join(err, l.Close())
	}
	p.keep(ifindex, l)
	return nil
}

// Links returns descriptors by which another process keeps the program attached, and replaces it,
// by interface. The caller closes them.
func (p *Program) Links() (map[int]*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[int]*os.File)
	for ifindex, l := range p.links {
		l, ok := l.(interface{ FD() int })
		if !ok {
			continue
		}
		fd, err := sock.DupDescriptor(l.FD())
		if err != nil {
			for _, f := range all {
				_ = f.Close()
			}
			return nil, err
		}
		all[ifindex] = os.NewFile(uintptr(fd), "link")
	}
	return all, nil
}

// Forget closes the attachments to interfaces that are gone.
func (p *Program) Forget(exists func(ifindex int) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ifindex, l := range p.links {
		if !exists(ifindex) {
			l.Close()
			delete(p.links, ifindex)
		}
	}
}

// Close turns the program off and detaches it. Its memory stays.
func (p *Program) Close() {
	if p.settings != nil {
		p.SetOn(false) // Another process may keep it attached.
	}
	p.Forget(func(int) bool { return false })
	p.entry.Close()
}

// Size returns how many bytes of the kernel's memory the program's maps take.
func (p *Program) Size() int64 { return p.size }

// Records returns the memory of all slabs, for tests.
func (p *Program) Records() []byte { return p.records }

// Handle runs the program on a frame that an interface has received, for tests. It returns
// the frame that leaves, or nil if the frame is left to a worker. A native program handles
// it as one of interface 1, to leave by the same.
func (p *Program) Handle(frame []byte, ifindex int) (out []byte, err error) {
	return p.handle(frame, skBuff{Interface: uint32(ifindex)})
}

// HandleMerged is Handle for a frame that GRO made of several.
func (p *Program) HandleMerged(frame []byte, ifindex, datagrams int) (out []byte, err error) {
	return p.handle(frame, skBuff{Interface: uint32(ifindex), GSOSegments: uint32(datagrams), GSOSize: uint32(len(frame) / datagrams)})
}

func (p *Program) handle(frame []byte, context skBuff) (out []byte, err error) {
	out = make([]byte, len(frame)+testRunRoom)
	opts := ebpf.RunOptions{Data: frame, DataOut: out, Context: &context}
	relays := uint32(actRedirect)
	if p.native {
		opts.Context, relays = nil, xdpTX
	}
	verdict, err := p.entry.Run(&opts)
	if err != nil || verdict != relays {
		return nil, err
	}
	return opts.DataOut, nil
}

const (
	// actRedirect is TC_ACT_REDIRECT of linux/pkt_cls.h.
	actRedirect = 7
	// xdpTX is XDP_TX of linux/bpf.h.
	xdpTX = 3
	// testRunRoom is more than the kernel adds to a frame.
	testRunRoom = 256
)

// skBuff is struct __sk_buff of linux/bpf.h as far as a test run takes it.
type skBuff struct {
	_           [10]uint32 // len to ingress_ifindex
	Interface   uint32
	_           [30]uint32
	GSOSegments uint32
	_           [2]uint32
	GSOSize     uint32
	_           [3]uint32
}
