package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/memory"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
)

// engineConfig returns the configuration of the relay for these settings and this mode.
func engineConfig(c *config.Config, mode Mode) (engine.Config, error) {
	advertised, err := advertise(listen(c), c.Advertise, ownAddresses(mode))
	if err != nil {
		return engine.Config{}, err
	}
	cfg := engine.Config{
		Listen: listen(c), Sockets: engine.Sockets{Batch: c.Batch, DisableGSO: !c.GSO, ReceiveDelay: c.ReceiveDelay},
		MaxConnections: c.MaxConnections, MaxContent: c.MaxContent,
		Timeouts:      engine.Timeouts{Idle: c.IdleTimeout, HostAlone: c.HostAloneTimeout, Bind: c.BindTimeout, Receive: c.HearTimeout},
		HostMigration: engine.HostMigration{Window: c.HostMigration, Silence: c.HostMigrationSilence},
		Limits:        limits(c), PlayerLimits: playerLimits(c),
		Unlimited: mode == Dev, Region: c.Region,
		AllowPrivateSources: c.AllowPrivateSources || mode == Dev,
		Recovery:            engine.Recovery{Window: c.RecoverFor},
	}
	if c.RecoverFor == 0 {
		cfg.Recovery.Window = engine.Never
	}
	for _, s := range c.Siblings {
		cfg.Siblings = append(cfg.Siblings, s.AddrPort)
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

// limits returns the quotas of one allocation.
func limits(c *config.Config) engine.Limits {
	return engine.Limits{
		JoinerDatagrams: orUnlimited(c.JoinerDatagrams), JoinerBytes: orUnlimited(c.JoinerBytes),
		HostDatagrams: orUnlimited(c.HostDatagrams), HostBytes: orUnlimited(c.HostBytes),
		UnvalidatedBytes: orUnlimited(c.UnvalidatedBytes), UnvalidatedRatio: orUnlimited(c.UnvalidatedRatio),
	}
}

// playerLimits returns the limits of one player.
func playerLimits(c *config.Config) engine.PlayerLimits {
	l := engine.PlayerLimits{Hosts: orUnlimited(c.PlayerHosts), Joiners: orUnlimited(c.PlayerJoiners), Seats: orUnlimited(c.PlayerSeats)}
	if c.PlayerSeats < 0 {
		l.Seats = 0 // the engine's default
	}
	return l
}

// loopback is advertised in dev, so that loopback sources are accepted.
var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

// orUnlimited converts 0, no limit in the settings, to that of the engine.
func orUnlimited(limit int) int { return cmp.Or(limit, engine.NoLimit) }

func listen(c *config.Config) []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(c.UDP))
	for i, a := range c.UDP {
		addrs[i] = a.AddrPort
	}
	return addrs
}

// seats returns the number of seats of the relay for these settings, 0 for no limit, so a
// fraction of a seat counts as one. A relay of a fleet always has a limit, since it
// announces its free seats: by default the number of its allocations.
func (a *App) seats(c *config.Config) int {
	seats := c.MaxSeats
	if seats == 0 && a.opts.Mode == Relay {
		seats = a.maxAllocations
	}
	if seats == 0 {
		return 0
	}
	return int(min(max(int64(seats)*int64(c.Overcommit)/100, 1), math.MaxInt32))
}

var _ placement.Engine = advertiser{}

// maxMessageSizeOver is by how much the setting maxMessageSize of Unity Transport
// exceeds the largest message that a client sends, by transport.
var maxMessageSizeOver = map[engine.Kind]int{engine.KindDTLS: 37, engine.KindWS: 14}

// logLargeMessage logs the first message of a match that not every client accepts.
func (a *App) logLargeMessage(e engine.LargeMessageEvent) {
	level, text := slog.LevelInfo, "message may be too large for its receiver"
	if e.Dropped {
		text = "message is too large for its receiver"
	}
	if e.Dropped || a.opts.Mode == Dev {
		level = slog.LevelWarn
	}
	size := min(e.Limit, dtls.SafeMessage) + maxMessageSizeOver[e.FromKind]
	a.opts.Logger.Log(context.Background(), level, text,
		"match", e.Match.String(), "sender_transport", transportName(e.FromKind), "receiver_transport", transportName(e.ToKind),
		"size", e.Size, "limit", e.Limit, "dropped", e.Dropped,
		"cure", fmt.Sprintf("NetworkSettings.WithNetworkConfigParameters(maxMessageSize: %d) at senders on %v; Unity Transport 2.0.2 cannot set it", size, transportName(e.FromKind)))
}

// transportName is the name of a kind in the settings of a game.
func transportName(k engine.Kind) string {
	if k == engine.KindUDP4 || k == engine.KindUDP6 {
		return "udp"
	}
	return k.String()
}

// restart is the state of the recovery of the previous run.
type restart struct {
	boot     uint64        // of this run
	previous int           // allocations that the previous run left
	lost     atomic.Uint64 // of them, those that did not come back in time
}

// countLost counts an allocation of the previous run that did not come back in time.
func (r *restart) countLost(e engine.EndEvent) {
	if e.Reason == engine.EndLost {
		r.lost.Add(1)
	}
}

// pending returns how many allocations may still come back.
func (r *restart) pending(rebuilt uint64) int {
	return max(r.previous-int(rebuilt)-int(r.lost.Load()), 0)
}

// addSessionFile adds the file of DTLS sessions as a component, which ends after the relay.
func (a *App) addSessionFile() {
	closeFile := func() error {
		if a.sessionFile == nil {
			return nil
		}
		return a.sessionFile.Close()
	}
	a.addComponent(component{sessionFileName, func(ctx context.Context) error {
		<-ctx.Done()
		if a.upgrades.to() != nil {
			a.upgrades.state.Sessions = a.dtls.HandOver()
		}
		return closeFile()
	}, closeFile})
}

// openSessionFile opens the file of DTLS sessions, see dtls.SessionFileConfig. An error does not prevent the start.
func (a *App) openSessionFile(slots int) *dtls.SessionFile {
	if a.opts.SessionFile == "" || a.opts.Config.RecoverFor == 0 {
		return nil
	}
	log := a.opts.Logger.With("file", a.opts.SessionFile)
	onError := func(err error) {
		log.Error("session file: cannot be written; DTLS sessions will not outlive this process, unless it can be written later", "error", err)
	}
	s, err := dtls.OpenSessionFile(dtls.SessionFileConfig{
		Path: a.opts.SessionFile, Relay: a.opts.Identity.Relay, MaxSessions: a.opts.Config.MaxDTLSSessions, Slots: slots, OnError: onError,
		OnStored: func() { log.Info("session file: it could be written again, and has all DTLS sessions") },
	})
	if err != nil {
		onError(err)
		return nil
	}
	a.sessionFile = s
	switch err := s.Unread(); {
	case errors.Is(err, engine.ErrStateRolledBack):
		log.Warn("session file: it lacks the last changes, as an older copy does, so DTLS sessions of an earlier run need a new handshake")
		return s
	case err != nil && !errors.Is(err, engine.ErrStateAbsent):
		log.Info("session file: not used, so DTLS sessions of an earlier run need a new handshake", "why", err)
		return s
	}
	log.Info("session file: open", "dtls_sessions_that_may_go_on", s.Found())
	return s
}

// logStateReport writes one line about what the previous run left.
func (a *App) logStateReport() {
	r := a.relay.StateReport()
	if !r.Opened {
		return
	}
	log, window := a.opts.Logger.With("file", a.opts.StateFile), a.opts.Config.RecoverFor.Round(time.Millisecond).String()
	a.restart.previous = r.Allocations
	switch {
	case a.opts.Fresh:
		log.Info("state file: new")
	case r.Complete:
		attrs := []any{"allocations", r.Allocations, "may_come_back_within", window}
		if !r.Closed.IsZero() {
			attrs = append(attrs, "closed", r.Closed.UTC().Format(time.RFC3339))
		}
		log.Info("state file: complete", attrs...)
	case errors.Is(r.Err, engine.ErrStateAbsent):
		log.Warn("state file: none was there, so every client of an earlier run is accepted after this start", "may_come_back_within", window)
	case errors.Is(r.Err, engine.ErrStateRolledBack):
		log.Warn("state file: it lacks the last changes, as an older copy does, so it is a hint only, and every client of an earlier run is accepted after this start",
			"allocations", r.Allocations, "may_come_back_within", window)
	default:
		log.Warn("state file: not complete, so it is a hint only, and every client of an earlier run is accepted after this start",
			"why", r.Err, "allocations", r.Allocations, "damaged", r.Damaged, "may_come_back_within", window)
	}
}

// onStateError logs an error of the state file. The relay continues.
func (a *App) onStateError(err error) {
	if errors.Is(err, engine.ErrStateFull) {
		a.opts.Logger.Error("state file: full, so that after a crash allocations that had ended may come back", "file", a.opts.StateFile)
		return
	}
	a.opts.Logger.Error("state file: it cannot be written. The relay goes on, and tries again every 5 s; but after a crash until then join codes are lost, and allocations that had ended may come back",
		"file", a.opts.StateFile, "error", err)
}

// onStateComplete logs that the state file was written anew.
func (a *App) onStateComplete() {
	a.opts.Logger.Info("state file: it could be written again, and is complete", "file", a.opts.StateFile)
}

// setBounds sets how many allocations the relay holds, and creates the memory guard. Dev
// has neither limit.
func (a *App) setBounds() {
	c, log := &a.opts.Config, a.opts.Logger
	a.maxAllocations = c.MaxAllocations
	if a.maxAllocations == 0 {
		a.maxAllocations = engine.DefaultMaxAllocations
	}
	if a.opts.Mode == Dev {
		return
	}
	a.memory = memory.NewGuard(memory.OfProcess(a.allocations, log))
	limit := a.memory.Stats().Limit
	if limit == 0 {
		return
	}
	fits := memory.Fits(limit, a.buffers(), reserved(c))
	switch {
	case fits >= a.maxAllocations:
	case c.MaxAllocations == 0:
		a.maxAllocations = fits
		log.Info("max_allocations is what fits into the memory limit", "max_allocations", fits)
	default:
		log.Warn("max_allocations is more than fits into the memory limit: allocations may be refused before",
			"max_allocations", c.MaxAllocations, "fits", fits)
	}
}

// buffers returns the maximum size of all socket buffers in bytes.
func (a *App) buffers() int64 {
	return int64(a.processors.receivers) * 2 * sock.DefaultBuffer
}

// reserved returns the memory of the sessions of DTLS and WebSocket.
func reserved(c *config.Config) (w memory.Transports) {
	if c.DTLS {
		w.Sessions = c.MaxDTLSSessions
	}
	if c.WebSocket {
		w.WebSockets, w.Queue = c.MaxWebSockets, int64(queueBytes(c)+websocket.DefaultSendBuffer)
	}
	return w
}

// allocations returns the number of allocations.
func (a *App) allocations() int { return a.relay.Stats().Allocations }

// hasMemory reports whether there is memory for one more allocation.
func (a *App) hasMemory() bool { return a.memory == nil || a.memory.Admit() }

// rejections count connections to the API that were closed: above the limit, for a newer one,
// and of a proxy without a PROXY header.
type rejections struct {
	total                                          atomic.Uint64 // unread
	evictedTotal, evictedAddress, evictedProtected atomic.Uint64
	header                                         atomic.Uint64

	mu     sync.Mutex // guards what follows
	logged time.Time
	closed int // for a limit, since the log said so
}

// note counts a connection that a limit closed, and writes a line a minute at most.
func (r *rejections) note(log *slog.Logger, why httpapi.Rejection, now time.Time) {
	switch why {
	case httpapi.RejectedTotal:
		r.total.Add(1)
	case httpapi.EvictedTotal:
		r.evictedTotal.Add(1)
	case httpapi.EvictedAddress:
		r.evictedAddress.Add(1)
	case httpapi.EvictedProtected:
		r.evictedProtected.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
	if !r.logged.IsZero() && now.Sub(r.logged) < rejectionLogEvery {
		return
	}
	log.Warn("connections to the API are closed for a limit; those without a valid token go first",
		"reason", string(why), "limits", "max_http_connections, max_address_connections", "closed_since_last_line", r.closed)
	r.logged, r.closed = now, 0
}

// rejectionLogEvery is how often the log says that connections are closed for a limit.
const rejectionLogEvery = time.Minute

// connLimits returns the limits of connections to the API's port.
func connLimits(c *config.Config, r *rejections, log *slog.Logger) httpapi.ConnLimits {
	return httpapi.ConnLimits{
		Total: c.MaxHTTPConnections, PerAddress: c.MaxAddressConnections,
		TrustedProxies: trustedProxies(c), IdleTimeout: c.HTTPIdleTimeout,
		OnReject: func(why httpapi.Rejection) { r.note(log, why, time.Now()) },
	}
}

// proxyConfig configures the PROXY protocol of trusted proxies. A connection counts as one of
// its client once the header has arrived.
func proxyConfig(c *config.Config, r *rejections) websocket.ProxyConfig {
	return websocket.ProxyConfig{
		Proxies:  trustedProxies(c),
		OnClient: httpapi.SetClient,
		OnRefuse: func(netip.Addr, error) { r.header.Add(1) },
	}
}

func trustedProxies(c *config.Config) []netip.Prefix {
	var all []netip.Prefix
	for _, n := range c.TrustedProxies {
		all = append(all, n.Prefix)
	}
	return all
}

// process returns the metrics of the process.
func (a *App) process() metrics.Process {
	p := metrics.Process{
		RefusedTotal:  a.rejected.total.Load(),
		RefusedHeader: a.rejected.header.Load(), EvictedTotal: a.rejected.evictedTotal.Load(),
		EvictedAddress: a.rejected.evictedAddress.Load(), EvictedProtected: a.rejected.evictedProtected.Load(),
		AcceptFailed: a.accepting.failed.Load(),
	}
	if a.relay == nil {
		return p
	}
	st := a.relay.Stats()
	p.MaxAllocations, p.Awaited, p.Storing = a.maxAllocations, a.restart.pending(st.Rebuilt), st.StateComplete
	p.Lost = a.restart.lost.Load()
	p.ForeignSockets = a.foreign.Sockets()
	host := a.hostLosses.read()
	p.UDP, p.Queues = host.udp, host.queues
	if a.memory != nil {
		m := a.memory.Stats()
		p.MemoryLimit, p.MemoryTight, p.MemoryRefused = m.Limit, m.Tight, m.Refused
	}
	return p
}
