//go:build linux && amd64 && !sockportable

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/nexthop"
	"github.com/ferryrelay/ferry/engine/internal/program"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

type path struct {
	cfg      Config
	log      *slog.Logger
	listen   []netip.AddrPort
	program  *program.Program
	resolver *nexthop.Resolver
	filters  *nexthop.FilterEvents
	clock    func() time.Duration // the engine's

	attaching sync.Mutex // held while the program is attached and detached, without mu

	mu         sync.Mutex // guards what follows
	disabled   bool       // by Path.SetEnabled
	current    bool       // the next hops are those of generation
	generation uint64
	nextHops   map[nexthop.Hop]table.NextHop
	hops       []nexthop.Hop // by next hop
	neighbours map[neighbour][]table.NextHop
	egresses   map[egress]int
	localAddrs map[localAddr]ingress
	attached   map[int]string    // interfaces by index
	detached   string            // why the program is attached to none, or not to all
	failed     atomic.Bool       // it is off for good
	reasons    map[string]uint64 // endpoints without a next hop
	filtered   string            // why the program is off: the kernel has filters that it would pass by
	bypassed   string            // the same, while it is on
	changes    uint64            // of filters
	dropped    string            // why it is off: a driver drops what it sends

	// former are the attachments of another process that Run takes over, by interface; nil
	// where that cannot be handed over. They belong to Load and then to Run.
	former map[int]*os.File
	// unavailable is why Load has failed. It is written before New of package engine returns.
	unavailable error
}

type neighbour struct {
	ifindex int
	addr    netip.Addr
}

// egress is how a frame begins and how long it may be.
type egress struct {
	ifindex, mtu int
	mac          [6]byte
}

// ingress is an interface with its hardware address; zero: any.
type ingress struct {
	ifindex int
	mac     [6]byte
}

type localAddr struct {
	listener uint8
	local    uint16
	addr     netip.AddrPort
}

// maxNextHops and maxEgresses are the numbers that the program can tell apart. 0 means none.
const (
	maxNextHops = 1<<15 - 1
	maxEgresses = program.MaxEgresses - 1
)

// minPathMTU is the MTU that every path of IPv6 has (RFC 8200, section 5). Its routers do not
// fragment, so what is larger may fit the path or not: the kernel knows, and fragments what
// sockets send.
const minPathMTU = 1280

func newPath(cfg Config) *path {
	p := &path{cfg: cfg, log: cfg.Logger}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	return p
}

// The error of Load wraps [ErrUnavailable].
func (p *path) Load(spec driver.FastPathSpec) (table.Memory, error) {
	if err := p.load(spec); err != nil {
		p.unavailable = fmt.Errorf("%w: %w", ErrUnavailable, err)
		return table.Memory{}, p.unavailable
	}
	return p.program.Memory(), nil
}

func (p *path) load(spec driver.FastPathSpec) error {
	p.listen = spec.Listen
	now, err := sock.Monotonic()
	if err != nil {
		return err
	}
	if err := sock.SynchronizeKernel(); err != nil {
		return err
	}
	if p.resolver, err = nexthop.New(); err != nil {
		return err
	}
	began, clock := time.Now(), time.Duration(spec.ClockMillis)*time.Millisecond
	p.clock = func() time.Duration { return clock + time.Since(began) }
	p.program, err = program.Load(program.Parameters{
		Allocations: spec.MaxAllocations, Listeners: len(spec.Listen), MaxMessage: spec.MaxMessage,
		Native: p.cfg.Native, ClockOffset: clock - time.Duration(now),
	})
	if err != nil {
		p.resolver.Close()
		return err
	}
	// A process without the capability for this lacks those for the program, whose error names all.
	if p.filters, err = nexthop.SubscribeFilters(); err != nil {
		p.resolver.Close()
		p.program.Close()
		return err
	}
	p.reset()
	p.attached = make(map[int]string)
	p.localAddrs = make(map[localAddr]ingress)
	p.takeFormer()
	if err := p.attach(); err != nil && (!p.cfg.Auto || len(p.attached) == 0 && !p.waits()) {
		p.Close()
		return err
	}
	return nil
}

func (p *path) waits() bool {
	return len(p.wantedInterfaces()) == 0 && slices.ContainsFunc(p.listen, func(l netip.AddrPort) bool { return !l.Addr().IsLoopback() })
}

// takeFormer: the process before this one serves until Run.
func (p *path) takeFormer() {
	p.former = make(map[int]*os.File)
	if p.cfg.Link == nil {
		return
	}
	for _, i := range p.resolver.Interfaces() {
		if f := p.cfg.Link(i.Index); f != nil {
			p.former[i.Index] = f
		}
	}
}

// replaceFormer takes the place of the program of the process before this one, which has ended, and
// gives up what is not wanted.
func (p *path) replaceFormer() {
	for index, f := range p.former {
		if p.cfg.Native && p.attached[index] != "" {
			if err := p.program.Replace(index, f); err != nil {
				p.log.Warn("fast path: the program of the process before this one is not replaced", "interface", p.attached[index], "error", err)
			}
		}
		_ = f.Close()
	}
	if p.cfg.Link != nil {
		p.cfg.Link = nil
		clear(p.former)
		_ = p.attach()
	}
}

var errVeth = errors.New("native XDP on a veth breaks the checksums of what programs on this machine send; name the interface in the configuration if there are none")

// attach attaches the program to the interfaces that it serves, without p.mu: control must not
// wait for a driver. While a driver drops what it sends, it is detached everywhere: a veth whose
// other end has no XDP may deliver nothing even when the program passes all. The error names all
// interfaces that refuse it.
func (p *path) attach() (err error) {
	p.attaching.Lock()
	defer p.attaching.Unlock()
	p.mu.Lock()
	dropped := p.dropped
	p.mu.Unlock()
	if dropped != "" {
		p.program.Forget(func(int) bool { return false })
		p.serve(nil, dropped)
		return nil
	}
	wanted, attached := p.wantedInterfaces(), make(map[int]string)
	p.program.Forget(func(index int) bool { _, exists := p.resolver.Interface(index); return exists })
	for index, name := range wanted {
		if attachErr := p.attachTo(index); attachErr != nil {
			err = errors.Join(err, fmt.Errorf("interface %s: %w", name, attachErr))
			continue
		}
		if p.attached[index] == "" { // It is written here only.
			p.log.Info("fast path", "interface", name, "mode", p.cfg.mode())
		}
		attached[index] = name
	}
	for _, name := range p.cfg.Interfaces {
		if !slices.Contains(slices.Collect(maps.Values(wanted)), name) {
			err = errors.Join(err, fmt.Errorf("there is no interface %s", name))
		}
	}
	if len(wanted) == 0 && err == nil {
		err = errors.New("no Ethernet interface that is up has a listen address")
	}
	detached := ""
	if err != nil {
		detached = err.Error()
	}
	if detached != "" && detached != p.detached {
		p.log.Warn("fast path: not on all interfaces", "error", err)
	}
	p.serve(attached, detached)
	return err
}

// serve stores to which interfaces the program is attached, and why not to others.
func (p *path) serve(attached map[int]string, detached string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached, p.detached = attached, detached
	for key, n := range p.egresses {
		p.setEgress(n, key)
	}
	p.switchProgram()
}

func (p *path) setEgress(n int, key egress) {
	_, served := p.attached[key.ifindex]
	p.program.SetEgress(n, key.ifindex, key.mtu, key.mac, served)
}

func (p *path) attachTo(index int) error {
	if i, _ := p.resolver.Interface(index); p.cfg.Native {
		if i.Kind == "veth" && len(p.cfg.Interfaces) == 0 {
			return errVeth
		}
		if err := checkVLAN(&i); err != nil {
			return err
		}
	}
	if p.cfg.Native && p.former[index] != nil {
		return nil // Run replaces the program there.
	}
	err := p.program.Attach(index)
	if p.cfg.Link != nil && errors.Is(err, syscall.EBUSY) {
		return nil // An older version does not hand over its attachment. It ends before Run attaches.
	}
	return err
}

func (p *path) wantedInterfaces() map[int]string {
	wanted, all := make(map[int]string), p.resolver.Interfaces()
	any := slices.ContainsFunc(all, func(i nexthop.Interface) bool { return i.Local && p.isListener(i) })
	for _, i := range all {
		serves := slices.Contains(p.cfg.Interfaces, i.Name)
		if len(p.cfg.Interfaces) == 0 {
			serves = i.Usable && (any || p.isListener(i))
		}
		if serves {
			wanted[i.Index] = i.Name
		}
	}
	return wanted
}

func (p *path) isListener(i nexthop.Interface) bool {
	return slices.ContainsFunc(p.listen, func(l netip.AddrPort) bool {
		return slices.ContainsFunc(i.Carries, func(a netip.Addr) bool {
			return !a.IsLoopback() && (a == l.Addr() || l.Addr().IsUnspecified() && a.Is4() == l.Addr().Is4() && !a.IsLinkLocalUnicast())
		})
	})
}

// reset: the program is off, or not attached yet.
func (p *path) reset() {
	p.nextHops = make(map[nexthop.Hop]table.NextHop)
	p.hops = make([]nexthop.Hop, 1)
	p.neighbours = make(map[neighbour][]table.NextHop)
	p.egresses = make(map[egress]int)
	p.reasons = make(map[string]uint64)
}

func (p *path) SetQuota(role table.Role, q table.Quota) { p.program.SetQuota(role, q) }

func (p *path) NextHop(to endpoint.Endpoint, from netip.AddrPort) table.NextHop {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocalAddr(localAddr{to.Listener(), to.Local(), from})
	hop, err := p.resolver.Route(to.AddrPort().Addr())
	if err != nil {
		p.reasons[reasonOf(err)]++
		return 0
	}
	if to.Kind() == endpoint.KindUDP6 {
		hop.MTU = min(hop.MTU, minPathMTU)
	}
	if nextHop, ok := p.nextHops[hop]; ok {
		return nextHop
	}
	if len(p.hops) > maxNextHops {
		p.reasons["next_hops"]++
		return 0
	}
	nextHop := table.NextHop(len(p.hops))
	p.hops = append(p.hops, hop)
	p.nextHops[hop] = nextHop
	via := neighbour{hop.Interface, hop.Via}
	p.neighbours[via] = append(p.neighbours[via], nextHop)
	p.setNextHop(nextHop)
	return nextHop
}

func (p *path) setLocalAddr(d localAddr) {
	ifindex, ok := p.resolver.Carrier(d.addr.Addr())
	i, _ := p.resolver.Interface(ifindex)
	at := ingress{ifindex, i.MAC}
	if i.Local {
		at = ingress{}
	}
	if old, known := p.localAddrs[d]; ok && (!known || old != at) {
		p.localAddrs[d] = at
		p.program.SetLocalAddr(d.listener, d.local, d.addr, at.ifindex, at.mac)
	}
}

func (p *path) setNextHop(nextHop table.NextHop) {
	hop := p.hops[nextHop]
	mac, known := p.resolver.Neighbour(hop.Interface, hop.Via)
	i, ok := p.resolver.Interface(hop.Interface)
	if !known || !ok {
		p.program.SetNextHop(nextHop, [6]byte{}, 0)
		return
	}
	key := egress{hop.Interface, hop.MTU, i.MAC}
	n, ok := p.egresses[key]
	if !ok {
		if len(p.egresses) == maxEgresses {
			p.program.SetNextHop(nextHop, [6]byte{}, 0)
			return
		}
		n = len(p.egresses) + 1
		p.egresses[key] = n
		p.setEgress(n, key)
	}
	p.program.SetNextHop(nextHop, mac, n)
}

func (p *path) Generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

func (p *path) Resume(generation uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = generation == p.generation
	p.switchProgram()
}

func (p *path) SetEnabled(on bool) {
	if p.unavailable != nil {
		return
	}
	p.mu.Lock()
	again := on && p.dropped != ""
	p.disabled = !on
	if on {
		p.dropped = ""
	}
	p.switchProgram()
	p.mu.Unlock()
	if again {
		_ = p.attach() // It is logged, and shown to the operator.
	}
}

func (p *path) switchProgram() { p.program.SetOn(p.isOn()) }

func (p *path) isOn() bool { return p.offBecause() == "" }

// offBecause returns "" if the program is on.
func (p *path) offBecause() string {
	switch {
	case p.failed.Load():
		return "of a fault, see the log"
	case p.disabled:
		return "the operator turned it off"
	case p.filtered != "":
		return p.filtered
	case p.dropped != "":
		return p.dropped
	case len(p.attached) == 0:
		return p.detached
	case !p.current:
		return "the network has changed, and next hops are looked up"
	}
	return ""
}

func (p *path) Synchronize() {
	err := sock.SynchronizeKernel()
	if err == nil {
		return
	}
	// It worked in Load. A run of the program takes microseconds.
	p.fail(err)
	time.Sleep(time.Second)
}

func (p *path) Run(ctx context.Context, changed func()) error {
	defer p.Close()
	ctx, cancel := context.WithCancel(ctx)
	p.watchFilters()
	var watching sync.WaitGroup
	watching.Go(func() { p.watch(ctx) })
	watching.Go(func() { p.followFilters(ctx) })
	defer watching.Wait()
	defer cancel()
	p.replaceFormer()
	p.turnOff()
	p.program.Expire(p.clock()) // The process before this one knew of other changes.
	changed()
	err := p.resolver.Run(ctx, nexthop.Events{
		Changing: p.turnOff,
		Changed: func() {
			_ = p.attach() // It is logged, and shown to the operator.
			p.mu.Lock()
			p.reset() // What was asked for meanwhile does not know what is attached.
			for d := range p.localAddrs {
				p.setLocalAddr(d)
			}
			p.mu.Unlock()
			changed()
		},
		Neighbour: p.neighbourChanged,
	})
	if err != nil {
		p.fail(err)
	}
	<-ctx.Done()
	return nil
}

// fail turns the program off for good: the relay goes on with its sockets.
func (p *path) fail(err error) {
	if !p.failed.Swap(true) {
		p.log.Error("fast path: switched off", "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.switchProgram()
}

// turnOff forgets all next hops: the network changes.
func (p *path) turnOff() {
	p.mu.Lock()
	p.current = false
	p.switchProgram()
	p.mu.Unlock()
	p.Synchronize() // No run sends by a next hop that is given anew.
	p.mu.Lock()
	p.generation++
	p.reset()
	p.mu.Unlock()
}

func (p *path) neighbourChanged(ifindex int, addr netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, nextHop := range p.neighbours[neighbour{ifindex, addr}] {
		p.setNextHop(nextHop)
	}
}

func (p *path) Counts() privateapi.FastPathCounts {
	if p.unavailable != nil {
		return privateapi.FastPathCounts{Mode: p.cfg.mode(), OffBecause: p.unavailable.Error()}
	}
	c := p.program.Counts()
	out := privateapi.FastPathCounts{Datagrams: c.Datagrams, Bytes: c.Bytes, Passed: make(map[string]uint64)}
	for r, n := range c.Passed {
		out.Passed[program.Reason(r).String()] = n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out.NoNextHop, out.FilterChanges = maps.Clone(p.reasons), p.changes
	for _, name := range p.attached {
		out.Interfaces = append(out.Interfaces, name)
	}
	slices.Sort(out.Interfaces)
	out.Mode, out.OffBecause = p.cfg.mode(), p.offBecause()
	out.On = out.OffBecause == ""
	return out
}

func (p *path) Optional() bool { return p.cfg.Auto }

func (p *path) Traffic(index uint32) (datagrams, bytes uint64) { return p.program.Traffic(index) }

func (p *path) Links() (map[int]*os.File, error) {
	if !p.cfg.Native || p.unavailable != nil {
		return nil, nil
	}
	return p.program.Links()
}

func (p *path) Size() int64 {
	if p.unavailable != nil {
		return 0
	}
	return p.program.Size()
}

func (p *path) Close() {
	for _, f := range p.former {
		_ = f.Close()
	}
	p.program.Close()
	p.resolver.Close()
	p.filters.Close()
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, nexthop.ErrPolicy):
		return "policy"
	case errors.Is(err, nexthop.ErrNoRoute):
		return "no_route"
	case errors.Is(err, nexthop.ErrNotSimple):
		return "not_simple"
	case errors.Is(err, nexthop.ErrInterface):
		return "interface"
	case errors.Is(err, nexthop.ErrDestination):
		return "destination"
	}
	return "routes"
}
