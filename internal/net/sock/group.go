package sock

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

const (
	// SlotSize is the room for one received datagram in bytes. It holds every
	// message of the wire protocol (at most 1,472 bytes) with some to spare; a
	// longer datagram is reported as truncated.
	SlotSize = 2048

	// DefaultBatch and MaxBatch bound the datagrams of one receive call.
	DefaultBatch = 64
	MaxBatch     = 256

	// MaxSendBatch bounds the entries of a SendBatch; Linux takes no more
	// than UIO_MAXIOV = 1,024 messages in a call.
	MaxSendBatch = 1024

	MaxSockets = 256

	// DefaultBuffer is asked of the kernel for each socket buffer, in bytes.
	DefaultBuffer = 4 << 20

	// maxBuffer keeps the kernel's doubling of the size inside an int32.
	maxBuffer = 1 << 30
)

var (
	ErrAddress = errors.New("sock: invalid listen address")
	ErrConfig  = errors.New("sock: invalid configuration")
)

type Config struct {
	// Addr is the address to listen on. Port 0 takes a free port. 0.0.0.0 and
	// [::] are wildcards; [::] receives IPv6 only, so dual stack takes two groups.
	Addr netip.AddrPort

	// Listener is copied into every endpoint.Endpoint the sockets report, so that a
	// process with several groups can select the group for a reply.
	Listener uint8

	// ReadBuffer and WriteBuffer are the kernel's buffers per socket in bytes.
	// 0 = DefaultBuffer; at most 1 GiB. Without CAP_NET_ADMIN the kernel grants
	// no more than net.core.rmem_max and wmem_max; see Capabilities.
	ReadBuffer, WriteBuffer int

	// Batch is the most datagrams one Recv returns. 0 = DefaultBatch, at most MaxBatch.
	Batch int

	// HoldProcessor lets a receiver keep its processor of Go's scheduler while
	// it waits for datagrams that keep coming. That saves a third and more of
	// the processor time at medium loads, see the package comment, but GOMAXPROCS must
	// be larger than the number of such receivers, or no other goroutine runs.
	// The portable build ignores it.
	HoldProcessor bool

	// DisableGSO sends every datagram as a message of its own, even where the
	// kernel could take several at once; for measurements.
	DisableGSO bool
}

// Capabilities are the features that the kernel granted to a [Group].
type Capabilities struct {
	Path         string // "mmsg" (Linux) or "portable"
	ReusePort    bool   // the sockets share the port and the kernel spreads peers over them
	LocalAddress bool   // replies leave from the address the peer sent to (always so on a specific address)
	PathMTU      bool   // path MTUs learnt from ICMP are ignored over IPv4, and heeded over IPv6
	DropCounter  bool   // Stats.KernelDrops counts
	GSO          bool   // datagrams of a batch to one endpoint may leave as one message
	ReadBuffer   int    // granted, in bytes; 0 = unknown
	WriteBuffer  int    // granted, in bytes; 0 = unknown
}

func (cfg Config) withDefaults() (Config, error) {
	ip := cfg.Addr.Addr()
	if !ip.IsValid() {
		return cfg, ErrAddress
	}
	cfg.Addr = netip.AddrPortFrom(ip.Unmap(), cfg.Addr.Port())
	if cfg.ReadBuffer == 0 {
		cfg.ReadBuffer = DefaultBuffer
	}
	if cfg.WriteBuffer == 0 {
		cfg.WriteBuffer = DefaultBuffer
	}
	if cfg.Batch == 0 {
		cfg.Batch = DefaultBatch
	}
	switch {
	case cfg.ReadBuffer < 0 || cfg.ReadBuffer > maxBuffer:
		return cfg, fmt.Errorf("%w: ReadBuffer %d", ErrConfig, cfg.ReadBuffer)
	case cfg.WriteBuffer < 0 || cfg.WriteBuffer > maxBuffer:
		return cfg, fmt.Errorf("%w: WriteBuffer %d", ErrConfig, cfg.WriteBuffer)
	case cfg.Batch < 0 || cfg.Batch > MaxBatch:
		return cfg, fmt.Errorf("%w: Batch %d", ErrConfig, cfg.Batch)
	}
	return cfg, nil
}

func clampSendBatch(n int) int { return max(1, min(n, MaxSendBatch)) }

// Group is a set of sockets on one address and port, over which the kernel
// spreads the peers: one peer always comes to the same socket, see SteerByCPU. Its fields are
// immutable after Listen; all methods may be called from any goroutine.
type Group struct {
	cfg    Config // with defaults and the resolved port
	locals *locals
	conns  []*Conn
	caps   Capabilities
}

// Listen binds n sockets, 1 <= n <= MaxSockets, to cfg.Addr. Where the
// platform cannot spread peers over several sockets the group has one.
//
// The first socket is bound without SO_REUSEPORT and opened to the others
// afterwards: so a port that any other socket holds is refused, even one of
// another group of this process, and port 0 never lands on such a port.
func Listen(cfg Config, n int) (*Group, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if n < 1 || n > MaxSockets {
		return nil, fmt.Errorf("%w: %d sockets", ErrConfig, n)
	}
	if !canShare {
		n = 1
	}
	g := &Group{cfg: cfg, locals: newLocals()}
	for i := range n {
		if err := g.open(i > 0, n > 1); err != nil {
			err = fmt.Errorf("sock: socket %d of %d on %v: %w", i+1, n, cfg.Addr, err)
			return nil, errors.Join(err, g.Close())
		}
	}
	g.caps.ReusePort = n > 1
	return g, nil
}

// Adopt is Listen for the sockets of a Group of another process, which [Group.Files] of that
// process returned in this order, with what has arrived there. cfg.Addr must be their
// address, or its port 0. The files belong to the Group, also if there is an error. It is
// errors.ErrUnsupported outside Linux and in the portable build.
func Adopt(cfg Config, files []*os.File) (*Group, error) {
	cfg, err := cfg.withDefaults()
	if err == nil && (len(files) < 1 || len(files) > MaxSockets) {
		err = fmt.Errorf("%w: %d sockets", ErrConfig, len(files))
	}
	g := &Group{cfg: cfg, locals: newLocals()}
	for i, f := range files {
		var s *socket
		if err == nil {
			s, err = adoptSocket(&g.cfg, f)
		}
		if err != nil {
			_ = f.Close()
			continue
		}
		if err = g.add(s, i > 0, false); err == nil && (g.cfg.Addr.Addr() != cfg.Addr.Addr() || cfg.Addr.Port() != 0 &&
			g.cfg.Addr.Port() != cfg.Addr.Port()) {
			err = fmt.Errorf("%w: the socket of another process is at %v", ErrAddress, g.cfg.Addr)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sock: adopt sockets on %v: %w", cfg.Addr, err), g.CloseDescriptors())
	}
	g.caps.ReusePort = len(files) > 1
	return g, nil
}

// Files returns duplicates of the sockets' descriptors, for [Adopt] in another process. Error:
// errors.ErrUnsupported outside Linux and in the portable build, or that of the system.
func (g *Group) Files() (files []*os.File, err error) {
	for _, c := range g.conns {
		f, err := c.file()
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, fmt.Errorf("sock: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

func (g *Group) open(join, share bool) error {
	s, err := openSocket(&g.cfg, join)
	if err != nil {
		return err
	}
	return g.add(s, join, share)
}

func (g *Group) add(s *socket, join, share bool) (err error) {
	c := &Conn{group: g, sock: s, kernel: s, sleep: time.Sleep, done: make(chan struct{})}
	if s.caps.GSO {
		c.segments.bytes.Store(maxRunBytes)
	}
	g.conns = append(g.conns, c)
	if join {
		return nil
	}
	g.caps = s.caps
	g.cfg.Addr, err = s.addr()
	if err == nil && share {
		err = s.share()
	}
	return err
}

// Addr returns the address and port the sockets are bound to.
func (g *Group) Addr() netip.AddrPort { return g.cfg.Addr }

// Conns returns the sockets. The slice is the caller's.
func (g *Group) Conns() []*Conn { return append([]*Conn(nil), g.conns...) }

// Capabilities returns the features that the kernel granted.
func (g *Group) Capabilities() Capabilities { return g.caps }

// LocalAddr returns the local address behind endpoint.Endpoint.Local, and false for 0
// and for numbers that this group did not assign.
func (g *Group) LocalAddr(local uint16) (netip.Addr, bool) {
	a, ok := g.locals.at(local)
	if !ok {
		return netip.Addr{}, false
	}
	return localIP(a, g.cfg.Addr.Addr().Is4()), true
}

// SteerByCPU makes socket i receive the datagrams that the kernel handles on CPU cpus[i],
// which must be a different one for each socket. Those that it handles on other CPUs are
// spread by the hash of the peer's address, as all are before. The error is ErrConfig for an
// unusable list, errors.ErrUnsupported outside Linux and in the portable build, or that of
// the kernel; nothing has changed then.
func (g *Group) SteerByCPU(cpus []int) error {
	if len(cpus) != len(g.conns) {
		return fmt.Errorf("%w: %d CPUs for %d sockets", ErrConfig, len(cpus), len(g.conns))
	}
	sorted := slices.Sorted(slices.Values(cpus))
	if sorted[0] < 0 || len(slices.Compact(sorted)) != len(cpus) {
		return fmt.Errorf("%w: CPUs %v", ErrConfig, cpus)
	}
	if err := g.conns[0].sock.steerByCPU(cpus); err != nil {
		return fmt.Errorf("sock: steer by CPU: %w", err)
	}
	return nil
}

// StopReceiving ends receiving on every socket; see [Conn.StopReceiving].
func (g *Group) StopReceiving() {
	for _, c := range g.conns {
		c.StopReceiving()
	}
}

// Close closes every socket and waits as [Conn.Close] does. It may be called
// several times.
func (g *Group) Close() error {
	var errs []error
	for _, c := range g.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// CloseDescriptors closes every socket as [Conn.CloseDescriptor] does.
func (g *Group) CloseDescriptors() error {
	var errs []error
	for _, c := range g.conns {
		errs = append(errs, c.CloseDescriptor())
	}
	return errors.Join(errs...)
}

func (g *Group) wildcard() bool { return g.cfg.Addr.Addr().IsUnspecified() }

// maxLocals bounds the local addresses that a Group can tell apart. A host
// rarely has more; beyond the bound the kernel chooses the source of replies.
const maxLocals = 1024

// localAddr is a local address in the words of an endpoint.Endpoint. The zone is the
// interface index of an IPv6 link-local address, otherwise 0.
type localAddr struct {
	hi, lo uint64
	zone   uint32
}

func localIP(a localAddr, v4 bool) netip.Addr {
	kind := endpoint.KindUDP6
	if v4 {
		kind = endpoint.KindUDP4
	}
	return endpoint.Endpoint{Hi: a.hi, Lo: a.lo, Tail: uint64(kind) << endpoint.KindShift}.AddrPort().Addr()
}

// locals numbers the local addresses that peers of one wildcard Group send to:
// 1, 2, 3 ... in order of appearance, 0 = unknown. Numbers never change and
// are never taken back. Any goroutine may call its methods; readers never lock.
type locals struct {
	mu    sync.Mutex // held by add
	table atomic.Pointer[localTable]
}

// localTable is immutable after it is published.
type localTable struct {
	ids   map[localAddr]uint16
	addrs []localAddr // by number; [0] is unused
}

func newLocals() *locals {
	l := new(locals)
	l.table.Store(&localTable{ids: map[localAddr]uint16{}, addrs: make([]localAddr, 1)})
	return l
}

// id returns the number of an address, making one if there is room.
func (l *locals) id(a localAddr) uint16 {
	t := l.table.Load()
	if id, ok := t.ids[a]; ok {
		return id
	}
	if len(t.addrs) > maxLocals {
		return 0
	}
	return l.add(a)
}

func (l *locals) at(id uint16) (localAddr, bool) {
	t := l.table.Load()
	if id == 0 || int(id) >= len(t.addrs) {
		return localAddr{}, false
	}
	return t.addrs[id], true
}

func (l *locals) add(a localAddr) uint16 {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.table.Load()
	if id, ok := t.ids[a]; ok {
		return id
	}
	if len(t.addrs) > maxLocals {
		return 0
	}
	next := &localTable{ids: maps.Clone(t.ids), addrs: append(slices.Clone(t.addrs), a)}
	id := uint16(len(t.addrs))
	next.ids[a] = id
	l.table.Store(next)
	return id
}

// maxAssigned bounds the numbers that Locals assigns: they have 16 bits.
const maxAssigned = 1<<16 - 1

var ErrLocals = errors.New("sock: local addresses cannot be numbered")

// Locals returns the numbers of local addresses, in their order, and makes
// those that are missing, up to 65,535. An [endpoint.Endpoint] with such a number is sent to
// from that address, also before anything has arrived there: so one socket can send from
// many addresses of this machine. The error wraps ErrLocals when the group does not listen
// on a wildcard, an address is of another family or has a zone, or there are too many.
func (g *Group) Locals(addrs []netip.Addr) ([]uint16, error) {
	if !g.wildcard() || !g.caps.LocalAddress {
		return nil, fmt.Errorf("%w: %v has a single source address", ErrLocals, g.cfg.Addr)
	}
	keys := make([]localAddr, len(addrs))
	for i, addr := range addrs {
		if addr = addr.Unmap(); !addr.IsValid() || addr.Is4() != g.cfg.Addr.Addr().Is4() || addr.Zone() != "" {
			return nil, fmt.Errorf("%w: %v on %v", ErrLocals, addr, g.cfg.Addr)
		}
		e := endpoint.UDP(netip.AddrPortFrom(addr, 0), 0, 0)
		keys[i] = localAddr{hi: e.Hi, lo: e.Lo}
	}
	return g.locals.assign(keys)
}

// NumberedAddrs returns the local addresses that have a number, by number from 1 on.
func (g *Group) NumberedAddrs() []netip.Addr {
	var all []netip.Addr
	for _, a := range g.locals.table.Load().addrs[1:] {
		ip := localIP(a, g.cfg.Addr.Addr().Is4())
		if a.zone != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(a.zone), 10))
		}
		all = append(all, ip)
	}
	return all
}

// Number gives the addresses of [Group.NumberedAddrs] of another process their numbers. No
// datagram must have been received. The error wraps ErrLocals if they do not fit.
func (g *Group) Number(addrs []netip.Addr) error {
	keys := make([]localAddr, len(addrs))
	for i, addr := range addrs {
		zone, err := strconv.ParseUint(cmp.Or(addr.Zone(), "0"), 10, 32)
		if err != nil || addr.Is4() != g.cfg.Addr.Addr().Is4() {
			return fmt.Errorf("%w: %v on %v", ErrLocals, addr, g.cfg.Addr)
		}
		e := endpoint.UDP(netip.AddrPortFrom(addr.WithZone(""), 0), 0, 0)
		keys[i] = localAddr{hi: e.Hi, lo: e.Lo, zone: uint32(zone)}
	}
	numbers, err := g.locals.assign(keys)
	for i, n := range numbers {
		if int(n) != i+1 {
			return fmt.Errorf("%w: %v is number %d, not %d", ErrLocals, addrs[i], n, i+1)
		}
	}
	return err
}

// assign numbers many addresses with one copy of the table; all or none.
func (l *locals) assign(keys []localAddr) ([]uint16, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.table.Load()
	next := &localTable{ids: maps.Clone(t.ids), addrs: slices.Clone(t.addrs)}
	numbers := make([]uint16, len(keys))
	for i, a := range keys {
		id, ok := next.ids[a]
		if !ok {
			if len(next.addrs) > maxAssigned {
				return nil, fmt.Errorf("%w: more than %d", ErrLocals, maxAssigned)
			}
			id = uint16(len(next.addrs))
			next.addrs = append(next.addrs, a)
			next.ids[a] = id
		}
		numbers[i] = id
	}
	l.table.Store(next)
	return numbers, nil
}
