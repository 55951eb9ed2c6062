package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/fastpath"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/base/parts"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/dataplane"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/host/foreign"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
	"github.com/ferryrelay/ferry/internal/server/host/memory"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
)

// localRelay is the relay of this process: the data plane with its transports and processors, the
// watches of the machine below it, and the files from which the next run continues. Its fields are
// fixed by newLocalRelay.
type localRelay struct {
	opts   *Options
	events *events.Stream

	engine         *dataplane.Relay
	history        *history.History
	usage          *usageKeeper
	codes          *localCodes // nil: a fleet has them
	drain          *drainer
	fastPath       privateapi.FastPath // nil: there is none
	processors     *processors
	memory         *memory.Guard // nil: not watched
	foreign        *foreign.Watch
	maxAllocations int           // at once
	recoverFor     time.Duration // see engine.Recovery.Window
	restart        restart
	hostLosses     hostLosses
}

// newLocalRelay opens the UDP sockets and the files, and takes over from another process, if there is one. The
// API listens at api, invalid if there is none. A relay that is never run must be closed.
func newLocalRelay(o *Options, stream *events.Stream, d *history.Directory, p *players, from *takeover,
	api netip.AddrPort) (_ *localRelay, err error) {
	r := &localRelay{opts: o, events: stream, processors: newProcessors(&o.Config, goScheduler())}
	if err := r.processors.check(); err != nil {
		return nil, err
	}
	r.processors.log(o.Logger)
	r.setBounds()
	cfg, err := engineConfig(&o.Config, o.Mode)
	if err != nil {
		return nil, err
	}
	identity := engine.Identity{
		Master: o.Identity.Master, Relay: o.Identity.Relay, Boot: rand.Uint64() | 1,
	}
	if from != nil {
		identity.Boot, cfg.Private.Handover = from.offer.Boot, from.offer
	}
	cfg.Sockets.Workers, cfg.Sockets.WorkerCPUs = r.processors.workers, r.processors.cpus
	if len(cfg.Sockets.WorkerCPUs) > 0 {
		var why string
		cfg.Sockets.SteerByCPU, why = r.processors.steersByCPU(machine.ReadInterfaces(os.DirFS("/")))
		o.Logger.Info("workers are pinned", "worker_cpus", string(o.Config.WorkerCPUs), "steering_by_cpu",
			cfg.Sockets.SteerByCPU, "because", why)
	}
	cfg.MaxAllocations, cfg.MaxSeats, cfg.Logger, cfg.Hooks = r.maxAllocations, r.seats(&o.Config), o.Logger, stream.RelayHooks()
	cfg.Hooks.Admit = p.admitOnRelay
	if o.Fresh || o.Mode == Dev {
		cfg.Recovery.Window = -1
	}
	r.restart.boot, r.recoverFor = identity.Boot, cfg.Recovery.Window
	cfg.Recovery.StateFile, cfg.Private.OnStateError, cfg.Private.OnStateComplete = o.Files.Allocations, r.onStateError, r.onStateComplete
	r.addFastPath(&cfg)
	data := dataplane.Config{
		Engine: cfg, Identity: identity, DTLS: &dtls.Config{MaxSessions: o.Config.MaxDTLSSessions}, HasRoom: r.hasMemory, Logger: o.Logger,
		Endpoints: func(listen []netip.AddrPort) ([]alloc.ServerEndpoint, error) { return endpointsAt(o, listen, api) },
	}
	if o.Config.WebSocket {
		w := websocketConfig(&o.Config, o.Mode)
		data.WebSocket = &w
	}
	if o.Config.RecoverFor > 0 {
		data.SessionFile = o.Files.Sessions
	}
	if r.engine, err = dataplane.New(data); err != nil {
		return nil, udpError(cfg.Listen, err)
	}
	r.logStateReport()
	r.drain = &drainer{relay: r.engine.Server, defaults: drainDefaults(&o.Config), changes: &stream.Drain, log: o.Logger}
	r.foreign = foreign.NewWatch(r.engine.Addrs(), o.Logger)
	r.history = history.New(history.Config{
		Directory: d, Relay: r.engine.Server, MaxContent: o.Config.MaxContent, RecoverFor: r.recoverFor, Logger: o.Logger,
	})
	r.usage = newUsageKeeper(o.Files.Usage, time.Now(), r.engine, o.Logger)
	if from == nil { // else another process still writes the file
		if err := r.usage.load(); err != nil {
			return nil, errors.Join(err, r.engine.Close())
		}
	}
	if o.Mode.hasAPI() {
		r.codes = &localCodes{Store: alloc.NewMemoryStore(), relay: r.engine.Server, log: o.Logger}
	}
	r.restoreCodes()
	return r, nil
}

// restoreCodes keeps the join codes of the run before.
func (r *localRelay) restoreCodes() {
	for _, kept := range r.engine.Private().KeptCodes() {
		r.history.KeepCode(kept.Host, kept.Code)
	}
	if r.codes != nil {
		r.engine.RestoreCodes(r.codes.Store)
	}
}

func (r *localRelay) addFastPath(to *engine.Config) {
	if r.opts.Config.XDP == "off" {
		return
	}
	fast := fastPathConfig(&r.opts.Config)
	fast.Logger = r.opts.Logger
	if h := r.opts.Parent; h != nil {
		fast.Link = func(ifindex int) *os.File { return h.Take(xdpName(ifindex)) }
	}
	path := fastpath.New(fast)
	r.fastPath, to.FastPath = path.Private(), path
}

func fastPathConfig(c *config.Config) fastpath.Config {
	return fastpath.Config{Interfaces: c.XDPInterfaces, Auto: c.XDP == "auto", Native: c.XDP == "native"}
}

// newService completes the configuration with this relay alone.
func (r *localRelay) newService(cfg alloc.ServiceConfig, s *settings) (*alloc.Service, error) {
	cfg.Store, cfg.KeepCode = r.codes, r.engine.KeepCode
	cfg.HasRoom = func(_ string, seats int) bool { return r.hasRoom(s.current().Config, seats) }
	return r.engine.NewService(cfg)
}

func (r *localRelay) subscribe(s *events.Stream) {
	s.LargeMessage.Subscribe(r.logLargeMessage)
	s.End.Subscribe(r.restart.countLost)
	if r.codes != nil {
		r.codes.subscribe(s)
	}
}

// prepare is a [prepare] for the limits of the relay, which are valid as settings.
func (r *localRelay) prepare(next *config.Config, _ []string) (apply, error) {
	return func(ctx context.Context, _ *operator.ReloadResult) error {
		if err := r.engine.SetMaxSeats(ctx, r.seats(next)); err != nil {
			return err
		}
		if err := r.engine.SetPlayerLimits(ctx, playerLimits(next)); err != nil {
			return err
		}
		return r.engine.SetLimits(limits(next))
	}, nil
}

// run relays until ctx ends, or until a drain is over, when it returns parts.ErrDone. At the end it
// calls handOver, which hands the relay over to another process, or reports that there is none.
func (r *localRelay) run(ctx context.Context, handOver func() bool) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if !handOver() {
			end()
		}
	})
	err := r.engine.Run(life)
	if !stop() {
		<-ended
	}
	if err == nil && ctx.Err() == nil && r.engine.Stats().Draining {
		r.drain.logEnd()
		return parts.ErrDone
	}
	return err
}

func (r *localRelay) watch(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { r.drain.watch(ctx) })
	watches.Go(func() { r.processors.follow(ctx, r.opts.Logger) })
	watches.Go(func() { r.foreign.Run(ctx) })
	if r.memory != nil {
		watches.Go(func() { r.memory.Run(ctx) })
	}
	watches.Wait()
}

// wake waits until WebSockets are accepted and the relay has answered a probe. Under
// a flood that may take several attempts. It reports false if ctx ends before.
func (r *localRelay) wake(ctx context.Context) bool {
	for r.engine.Wait(ctx) && ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, probeWithin)
		err := r.engine.Private().Check(attempt)
		cancel()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			r.opts.Logger.Warn("the relay does not answer itself yet", "error", err)
		}
	}
	return false
}

func engineConfig(c *config.Config, mode Mode) (engine.Config, error) {
	advertised, err := advertise(listen(c), c.Advertise, ownAddresses(mode))
	if err != nil {
		return engine.Config{}, err
	}
	cfg := engine.Config{
		Listen: listen(c), Sockets: engine.Sockets{DisableGSO: !c.GSO, ReceiveDelay: c.ReceiveDelay},
		MaxConnections: c.MaxConnections, MaxContent: c.MaxContent,
		Timeouts:      engine.Timeouts{Idle: c.IdleTimeout, HostAlone: c.HostAloneTimeout, Bind: c.BindTimeout, Receive: receiveTimeout(c)},
		HostMigration: engine.HostMigration{Window: c.HostMigration, Silence: hostSilence(c)},
		Limits:        limits(c), PlayerLimits: playerLimits(c),
		Unlimited: mode == Dev, Region: c.Region,
		AllowPrivateSources: c.AllowPrivateSources || mode == Dev,
		Recovery:            engine.Recovery{Window: c.RecoverFor},
	}
	if c.RecoverFor == 0 {
		cfg.Recovery.Window = -1
	}
	for _, addr := range advertised {
		// Ports may not be known yet: the relay needs the addresses only. Behind an
		// address translator they are not addresses of the machine.
		cfg.Advertise = append(cfg.Advertise, engine.UDPServerEndpoint(addr))
		if addr.Port() != 0 {
			cfg.Siblings = append(cfg.Siblings, addr)
		}
	}
	if mode == Dev {
		cfg.Advertise = append(cfg.Advertise, engine.UDPServerEndpoint(loopback))
	}
	return cfg, nil
}

// receiveTimeout is when an allocation ends whose client sends nothing, although it receives traffic: with
// the default idle time-out, after the 30 s in which a phone that changes networks is back.
func receiveTimeout(c *config.Config) time.Duration { return min(3*c.IdleTimeout, maxTimeout) }

// hostSilence is after how long without a message a host has left, if a player asks for its place: with the
// default idle time-out, after two PING periods of Unity's clients and a second. It is below the idle
// time-out, since a player that has lost its host may be silent too, and must be bound when it asks.
func hostSilence(c *config.Config) time.Duration { return c.IdleTimeout * 7 / 10 }

// maxTimeout is the longest time-out of the engine.
const maxTimeout = 24 * time.Hour

func limits(c *config.Config) engine.Limits {
	return engine.Limits{
		JoinerDatagrams: orUnlimited(c.JoinerDatagrams), JoinerBytes: orUnlimited(c.JoinerBytes),
		HostDatagrams: orUnlimited(c.HostDatagrams), HostBytes: orUnlimited(c.HostBytes),
	}
}

func playerLimits(c *config.Config) engine.PlayerLimits {
	seats := min(c.PlayerHosts*(c.MaxConnections+1), math.MaxInt32) // each host may have all players that it may request
	return engine.PlayerLimits{
		Hosts: orUnlimited(c.PlayerHosts), Joiners: orUnlimited(2 * c.PlayerHosts),
		JoinersPerHost: orUnlimited(c.PlayerSeatsPerHost), Seats: orUnlimited(seats),
	}
}

// loopback is advertised in dev, so that loopback sources are accepted.
var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

// orUnlimited converts 0, no limit in the settings, to that of the engine.
func orUnlimited(limit int) int { return cmp.Or(limit, -1) }

func listen(c *config.Config) []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(c.UDP))
	for i, a := range c.UDP {
		addrs[i] = a.AddrPort
	}
	return addrs
}

func (r *localRelay) hasRoom(c config.Config, seats int) bool {
	most, st := r.seats(&c), r.engine.Stats()
	return !st.Draining && (most == 0 || st.Seats+seats <= most)
}

// seats returns the number of seats of the relay for these settings, 0 for no limit. A relay of a fleet always has a limit, since it
// announces its free seats: by default the number of its allocations.
func (r *localRelay) seats(c *config.Config) int {
	if c.MaxSeats == 0 && r.opts.Mode == Relay {
		return r.maxAllocations
	}
	return c.MaxSeats
}

var _ placement.Relay = (*dataplane.Relay)(nil)

// maxMessageSizeOver is by how much the setting maxMessageSize of Unity Transport
// exceeds the largest message that a client sends, by transport.
var maxMessageSizeOver = map[string]int{"dtls": 37, "ws": 14}

func (r *localRelay) logLargeMessage(e privateapi.LargeMessageEvent) {
	level, text := slog.LevelInfo, "message may be too large for its receiver"
	if e.Dropped {
		text = "message is too large for its receiver"
	}
	if e.Dropped || r.opts.Mode == Dev {
		level = slog.LevelWarn
	}
	size := min(e.Limit, privateapi.SafeMessage) + maxMessageSizeOver[e.FromTransport]
	r.opts.Logger.Log(context.Background(), level, text,
		"match", e.Match.String(), "sender_transport", transportName(e.FromTransport), "receiver_transport", transportName(e.ToTransport),
		"size", e.Size, "limit", e.Limit, "dropped", e.Dropped,
		"cure", fmt.Sprintf("NetworkSettings.WithNetworkConfigParameters(maxMessageSize: %d) at senders on %v; Unity Transport 2.0.2 cannot set it",
			size, transportName(e.FromTransport)))
}

func transportName(name string) string {
	if name == "udp4" || name == "udp6" {
		return "udp"
	}
	return name
}

type restart struct {
	boot     uint64        // of this run
	previous int           // allocations that the previous run left
	lost     atomic.Uint64 // of them, those that did not come back in time
}

func (r *restart) countLost(e engine.EndEvent) {
	if e.Reason == engine.EndLost {
		r.lost.Add(1)
	}
}

// pending returns how many allocations may still come back.
func (r *restart) pending(rebuilt uint64) int {
	return max(r.previous-int(rebuilt)-int(r.lost.Load()), 0)
}

func (r *localRelay) logStateReport() {
	report := r.engine.Private().StateReport()
	if !report.Opened {
		return
	}
	log, window := r.opts.Logger.With("file", r.opts.Files.Allocations), r.opts.Config.RecoverFor.Round(time.Millisecond).String()
	r.restart.previous = report.Allocations
	switch {
	case r.opts.Fresh:
		log.Info("state file: new")
	case report.Complete:
		attrs := []any{"allocations", report.Allocations, "may_come_back_within", window}
		if !report.Closed.IsZero() {
			attrs = append(attrs, "closed", report.Closed.UTC().Format(time.RFC3339))
		}
		log.Info("state file: complete", attrs...)
	case errors.Is(report.Err, privateapi.ErrStateAbsent):
		log.Warn("state file: none was there, so every client of an earlier run is accepted after this start", "may_come_back_within", window)
	case errors.Is(report.Err, privateapi.ErrStateRolledBack):
		log.Warn("state file: it lacks the last changes, as an older copy does, so it is a hint only, and every client of an earlier run is accepted after this start",
			"allocations", report.Allocations, "may_come_back_within", window)
	default:
		log.Warn("state file: not complete, so it is a hint only, and every client of an earlier run is accepted after this start",
			"why", report.Err, "allocations", report.Allocations, "damaged", report.Damaged, "may_come_back_within", window)
	}
}

func (r *localRelay) onStateError(err error) {
	if errors.Is(err, privateapi.ErrStateFull) {
		r.opts.Logger.Error("state file: full, so that after a crash allocations that had ended may come back", "file", r.opts.Files.Allocations)
		return
	}
	r.opts.Logger.Error("state file: it cannot be written. The relay goes on, and tries again every 5 s; but after a crash until then join codes are lost, and allocations that had ended may come back",
		"file", r.opts.Files.Allocations, "error", err)
}

func (r *localRelay) onStateComplete() {
	r.opts.Logger.Info("state file: it could be written again, and is complete", "file", r.opts.Files.Allocations)
}

const defaultMaxAllocations = 1_000_000

// setBounds sets how many allocations the relay holds, and creates the memory guard. Dev
// has neither limit.
func (r *localRelay) setBounds() {
	c, log := &r.opts.Config, r.opts.Logger
	r.maxAllocations = cmp.Or(c.MaxAllocations, defaultMaxAllocations)
	if r.opts.Mode == Dev {
		return
	}
	r.memory = memory.NewGuard(memory.OfProcess(func() int { return r.stats().Allocations }, log))
	limit := r.memory.Stats().Limit
	if limit == 0 {
		return
	}
	fits := memory.Fits(limit, r.buffers(), reserved(c))
	switch {
	case fits >= r.maxAllocations:
	case c.MaxAllocations == 0:
		r.maxAllocations = fits
		log.Info("max_allocations is what fits into the memory limit", "max_allocations", fits)
	default:
		log.Warn("max_allocations is more than fits into the memory limit: allocations may be refused before",
			"max_allocations", c.MaxAllocations, "fits", fits)
	}
}

func (r *localRelay) buffers() int64 {
	return int64(r.processors.receivers) * 2 * sock.DefaultBuffer
}

func reserved(c *config.Config) (w memory.Transports) {
	w.Sessions = c.MaxDTLSSessions
	if c.WebSocket {
		w.WebSockets, w.Queue = c.MaxWebSockets, privateapi.WebSocketBytes
	}
	return w
}

func (r *localRelay) addrs() []netip.AddrPort {
	if r == nil {
		return nil
	}
	return r.engine.Addrs()
}

func (r *localRelay) stats() engine.Stats {
	if r == nil {
		return engine.Stats{}
	}
	return r.engine.Stats()
}

func (r *localRelay) hasMemory() bool { return r.memory == nil || r.memory.Admit() }

func (r *localRelay) addMetrics(p *metrics.Process) {
	st := r.engine.Stats()
	p.MaxAllocations, p.Awaited, p.Storing = r.maxAllocations, r.restart.pending(st.Rebuilt), st.Private.StateComplete
	p.Lost = r.restart.lost.Load()
	p.ForeignSockets = r.foreign.Sockets()
	host := r.hostLosses.read()
	p.UDP, p.Queues = host.udp, host.queues
	if r.memory != nil {
		m := r.memory.Stats()
		p.MemoryLimit, p.MemoryTight, p.MemoryRefused = m.Limit, m.Tight, m.Refused
	}
}

// websocketConfig returns the configuration of WebSocket. Its limits per address are those
// of connections to the API: none in dev.
func websocketConfig(c *config.Config, mode Mode) websocket.Config {
	w := websocket.Config{
		MaxConns: c.MaxWebSockets, MaxConnsPerAddress: perAddress(c.MaxWebSockets),
		TrustedProxies: trustedProxies(c), AllowOrigins: origins(c),
	}
	if mode == Dev {
		w.MaxConnsPerAddress = -1
	}
	return w
}
