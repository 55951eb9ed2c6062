package engine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// ErrAlreadyRun is returned by a second call of Run.
var ErrAlreadyRun = errors.New("engine: Run was called before, or the server is closed")

// Server is a relay. Any goroutine may call its methods. Those that take a context are carried out
// by one goroutine of Run, one after the other. A call whose error is [ErrNotRunning],
// [alloc.ErrInHook], or an alloc.ErrUnavailable since ctx ended has no effect, now or later; if
// the relay has taken it when ctx ends, it is carried out.
type Server struct {
	shared  *shared
	cfg     Config
	log     *slog.Logger
	groups  []*sock.Group // by listener
	workers []*worker     // those of the sockets first
	intakes []intakes     // by transport
	control *control

	stateReport privateapi.StateReport
	keptCodes   []privateapi.KeptCode // see KeptCodes
	handover    handover

	observing sync.Mutex // held by Observe
	observed  atomic.Pointer[[]alloc.Observer]

	ran          atomic.Bool
	relays       atomic.Bool // Run has begun to relay
	closing      sync.Once
	checkSockets checkSockets
	ready        chan struct{} // closed when Run answers calls
	stopped      chan struct{} // closed when control has stopped answering
	ended        chan struct{} // closed when Run has returned
}

// New opens the sockets and the state file of a relay, and starts no goroutine. Errors: an invalid
// field of id or cfg, or a socket that cannot be opened.
func New(cfg Config, id Identity) (s *Server, err error) {
	if offer := cfg.Private.Handover; offer != nil {
		defer func() {
			if err != nil {
				offer.Close()
			}
		}()
	}
	keys := seal.Config{Master: id.Master, Relay: id.Relay, Boot: id.Boot, Epoch: id.Epoch, Now: id.Now}
	if cfg.Private.Handover != nil {
		keys.Boot = cfg.Private.Handover.Boot
	}
	sealer, err := seal.New(keys)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if len(cfg.Listen) == 0 {
		cfg.Listen = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)}
	}
	cfg.Sockets.Workers = cmp.Or(cfg.Sockets.Workers, len(cfg.Sockets.WorkerCPUs), runtime.GOMAXPROCS(0))
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, alloc.DefaultMaxConnections)
	cfg.MaxAllocations = cmp.Or(cfg.MaxAllocations, table.DefaultMaxAllocations)
	cfg.Region = cmp.Or(cfg.Region, "default")
	checker, err := newChecker()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if cfg.Private.Handover != nil {
		if err := checkHandover(cfg.Private.Handover, &cfg); err != nil {
			return nil, err
		}
	}
	s = &Server{cfg: cfg, log: cfg.Logger, ready: make(chan struct{}), stopped: make(chan struct{}), ended: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if err := s.listen(); err != nil {
		return nil, err
	}
	s.shared = &shared{
		rules: cfg.rules(), sealer: sealer, budgets: newBudgets(cfg.Unlimited), checker: checker, clock: newClock(sock.Now()),
	}
	if cfg.Private.Handover != nil {
		if s.shared.clock, err = continueClock(cfg.Private.Handover.Started); err != nil {
			s.closeSockets()
			return nil, err
		}
		s.shared.rules.recoverUntil = 0
	}
	s.shared.log, s.shared.reportsRefusals = s.log, cfg.Hooks.Private.OnRefuse != nil
	if s.shared.table, err = s.newTable(); err != nil {
		s.closeSockets()
		return nil, err
	}
	if cfg.Private.Handover != nil {
		s.shared.table.Prepare(cfg.Private.Handover.Allocations)
	}
	s.setLimits(cfg.Limits)
	s.cfg.Advertise = slices.Clone(cfg.Advertise)
	if len(s.cfg.Advertise) == 0 {
		s.cfg.Advertise = []alloc.ServerEndpoint{UDPServerEndpoint(s.Addr())}
	}
	for i := range s.cfg.Advertise {
		e := &s.cfg.Advertise[i]
		e.Port = cmp.Or(e.Port, s.Addr().Port())
	}
	s.shared.sources = newSources(s.Addrs(), ownAddresses(), s.cfg.Advertise, &s.cfg)
	s.build()
	if cfg.Logger == nil {
		s.control.guard.log = slog.Default()
	}
	var left statefile.PreviousRun
	if cfg.Private.Handover == nil { // The other process has the file open until Run.
		var file *statefile.File
		file, left = s.openStateFile(nil)
		s.control.setStateFile(file)
	}
	s.control.recover(left)
	return s, nil
}

func (s *Server) newTable() (*table.Table, error) {
	if s.cfg.FastPath == nil {
		return table.NewTable(s.cfg.MaxAllocations), nil
	}
	memory, err := s.cfg.fastPath().Load(driver.FastPathSpec{
		Listen: s.Addrs(), MaxAllocations: s.cfg.MaxAllocations,
		MaxMessage: proto.RelayOverhead + s.shared.rules.maxContent, ClockMillis: s.shared.clock(),
	})
	switch {
	case err != nil && s.cfg.fastPath().Optional():
		s.log.Warn("the fast path is off: all datagrams go through the sockets", "error", err)
		s.cfg.FastPath = nil
		return table.NewTable(s.cfg.MaxAllocations), nil
	case err != nil:
		return nil, fmt.Errorf("engine: %w", err)
	}
	return table.NewTableIn(memory, s.cfg.MaxAllocations), nil
}

// localAddr returns false if the kernel chooses the address.
func (s *Server) localAddr(ep endpoint.Endpoint) (netip.AddrPort, bool) {
	group := s.groups[ep.Listener()]
	if addr := group.Addr(); ep.Local() == 0 {
		return addr, !addr.Addr().IsUnspecified()
	}
	ip, ok := group.LocalAddr(ep.Local())
	return netip.AddrPortFrom(ip, group.Addr().Port()), ok
}

// UDPServerEndpoint is the entry of [Config].Advertise for plain UDP at addr.
func UDPServerEndpoint(addr netip.AddrPort) alloc.ServerEndpoint {
	return alloc.ServerEndpoint{
		ConnectionType: "udp", Network: "udp", Host: addr.Addr().String(), Port: addr.Port(),
	}
}

// The clock is in milliseconds, and was clockStart when [sock.Now] was start.
func newClock(start int64) func() int64 {
	return func() int64 { return clockStart + (sock.Now()-start)/1e6 }
}

// continueClock takes Handover.Started of the other process.
func continueClock(started int64) (func() int64, error) {
	now, err := sock.Monotonic()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	return newClock(sock.Now() - (now - started)), nil
}

// clockStart is a minute: a zero stamp is in the past for every rule that lasts seconds.
const clockStart = 60_000

// portTries: a port that is free at the first address may be taken at the next.
const portTries = 5

func (s *Server) listen() error {
	free := len(s.cfg.Listen) > 1 && s.cfg.Listen[0].Port() == 0
	for try := 1; ; try++ {
		err := s.listenOnce()
		if !free || try == portTries || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
}

func (s *Server) listenOnce() error {
	for i, addr := range s.cfg.Listen {
		if i > 0 && addr.Port() == 0 {
			addr = netip.AddrPortFrom(addr.Addr(), s.groups[0].Addr().Port())
		}
		group, err := s.openGroup(i, sock.Config{
			Addr: addr, Listener: uint8(i), DisableGSO: s.cfg.Sockets.DisableGSO,
			HoldProcessor: s.cfg.Sockets.Workers*len(s.cfg.Listen) < runtime.GOMAXPROCS(0),
		})
		if err != nil {
			s.closeGroups()
			s.groups = nil
			return fmt.Errorf("%w on %v: %w", privateapi.ErrListen, addr, err)
		}
		s.groups = append(s.groups, group)
		s.steer(group.Addr(), group)
	}
	return nil
}

func (s *Server) openGroup(listener int, cfg sock.Config) (*sock.Group, error) {
	if s.cfg.Private.Handover == nil {
		return sock.Listen(cfg, s.cfg.Sockets.Workers)
	}
	files := s.cfg.Private.Handover.Sockets[listener]
	s.cfg.Private.Handover.Sockets[listener] = nil // they belong to the group
	return sock.Adopt(cfg, files)
}

// Sockets that another process has, and relays with, stay as they are there.
func (s *Server) closeGroups() {
	for _, g := range s.groups {
		if s.cfg.Private.Handover != nil && !s.relays.Load() {
			_ = g.CloseDescriptors()
		} else {
			_ = g.Close()
		}
	}
}

func (s *Server) steer(addr netip.AddrPort, group interface{ SteerByCPU(cpus []int) error }) {
	if !s.cfg.Sockets.SteerByCPU || len(s.cfg.Sockets.WorkerCPUs) < 2 {
		return
	}
	if err := group.SteerByCPU(s.cfg.Sockets.WorkerCPUs); err != nil {
		s.log.Warn("steering by CPU is refused: datagrams are spread by the hash of the client's address", "address", addr, "error", err)
	}
}

func (s *Server) build() {
	var epochs []*epoch
	wake := make(chan struct{}, 1)
	c := newControl(s.shared, s.observedHooks(s.cfg.Hooks), wake)
	for _, group := range s.groups {
		for core, conn := range group.Conns() {
			w := newWorker(s.shared, sock.DefaultBatch, wake)
			w.conn = conn
			w.pacer = newPacer(s.cfg.Sockets.ReceiveDelay, w.batchSize)
			w.records = s.cfg.records()
			w.prepare = func() { s.prepareThread(w, core) }
			s.workers = append(s.workers, w)
		}
	}
	s.buildIntakes(wake)
	for _, w := range s.workers {
		epochs = append(epochs, w.epoch)
		c.inboxes.add(w.inbox)
	}
	c.migrations, c.records, c.transports = newMigrations(&s.cfg), s.cfg.records(), s.cfg.Transports
	c.seats.max = int64(s.cfg.MaxSeats)
	c.players.limits = s.cfg.PlayerLimits.withDefaults(s.cfg.MaxConnections, s.cfg.Unlimited)
	s.cfg.Private.OnStateError = guard(c.guard, "OnStateError", s.cfg.Private.OnStateError)
	c.rewrite.onComplete = guardCall(c.guard, "OnStateComplete", s.cfg.Private.OnStateComplete)
	c.sendTotals, c.projects.traffic, c.isOpen = s.sendTotals, s.traffic, s.isOpen
	s.shared.grace = newGrace(epochs)
	if path := s.cfg.fastPath(); path != nil {
		c.nextHops = &nextHops{path: path, table: s.shared.table, tap: &s.shared.tap, localAddr: s.localAddr}
		if s.cfg.Records != nil {
			c.nextHops.alive = s.cfg.records().Alive
		}
		s.shared.grace.kernel = newKernelGrace(path.Synchronize, c.wakeUp)
	}
	s.attachOutbox(&c.out, 0)
	s.control = c
}

// Each transport has as many workers as there are sockets per listener.
func (s *Server) buildIntakes(wake chan struct{}) {
	for i, t := range s.cfg.Transports {
		var all intakes
		for core := range s.cfg.Sockets.Workers {
			w := newWorker(s.shared, sock.DefaultBatch, wake)
			w.transport = t.Name()
			s.attachOutbox(&w.out, core)
			s.workers = append(s.workers, w)
			all = append(all, newIntake(w, transportKind(i)))
		}
		s.intakes = append(s.intakes, all)
	}
}

const (
	controlBatch = 64
	// A further caller waits.
	callQueue = 64
)

func newControl(r *shared, hooks Hooks, wake chan struct{}) *control {
	c := &control{
		shared: r, wake: wake, calls: make(chan *call, callQueue),
		out: newOutbox(controlBatch), wheel: wheel{table: r.table, now: tick(r.clock())},
		projects: newProjects(), players: newPlayers(), codes: make(map[table.Handle]statefile.Code),
		tags: make(map[table.Handle]uint64), sentTotals: make(sentTotals),
	}
	c.guard = &hookGuard{shared: r}
	c.hooks = c.guard.hooks(hooks)
	return c
}

func newWorker(r *shared, batch int, wake chan<- struct{}) *worker {
	w := &worker{shared: r, inbox: newInbox(r.budgets.unlimited), batchSize: batch, wake: wake, epoch: new(epoch), out: newOutbox(batch),
		traffic: newTraffic()}
	w.crypto.deriver = r.sealer.NewDeriver()
	w.mutes.secret = r.budgets.secret
	return w
}

// prepareThread pins the calling thread, which is locked, and allocates its worker's batches
// there: the kernel takes a page from the NUMA node of the thread that touches it first.
func (s *Server) prepareThread(w *worker, core int) {
	if core < len(s.cfg.Sockets.WorkerCPUs) {
		if err := sock.PinThread(s.cfg.Sockets.WorkerCPUs[core]); err != nil {
			s.log.Warn("a worker is not pinned", "worker", core, "error", err)
		}
	}
	w.rx = w.conn.NewRecvBatch()
	s.attachOutbox(&w.out, core)
}

// RelayConfig implements [alloc.Relay].
func (s *Server) RelayConfig() alloc.RelayConfig {
	return alloc.RelayConfig{
		Region: s.cfg.Region, MaxConnections: s.cfg.MaxConnections,
		BindTimeout: cmp.Or(s.cfg.Timeouts.Bind, alloc.DefaultBindTimeout), HostMigration: s.cfg.HostMigration.Window > 0,
		Unlimited: s.cfg.Unlimited,
	}
}

// Addr returns the first listen address, with its real port.
func (s *Server) Addr() netip.AddrPort { return s.groups[0].Addr() }

// Addrs returns all listen addresses, with their real ports.
func (s *Server) Addrs() []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(s.groups))
	for i, g := range s.groups {
		addrs[i] = g.Addr()
	}
	return addrs
}

// Ready returns a channel that is closed when Run relays and carries out calls.
func (s *Server) Ready() <-chan struct{} { return s.ready }
