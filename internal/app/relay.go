package app

import (
	"math"
	"net/netip"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

// engineConfig returns what settings and mode say about the relay.
func engineConfig(c *config.Config, mode Mode) (engine.Config, error) {
	told, err := advertise(listen(c), c.Advertise, ownAddresses(mode))
	if err != nil {
		return engine.Config{}, err
	}
	cfg := engine.Config{
		Listen: listen(c), Workers: processors(c), Batch: c.Batch, Unmerged: !c.Merge, ReceiveDelay: c.ReceiveDelay,
		MaxConnections: c.MaxConnections, MaxContent: c.MaxContent,
		IdleTimeout: c.IdleTimeout, HostAloneTimeout: c.HostAloneTimeout,
		BindTimeout: c.BindTimeout, HearTimeout: c.HearTimeout,
		Limits:    limits(c),
		Unlimited: mode == Dev, Region: c.Region,
		AllowPrivateSources: c.AllowPrivateSources || mode == Dev,
		RecoverFor:          c.RecoverFor,
	}
	if c.RecoverFor == 0 {
		cfg.RecoverFor = -1
	}
	for _, s := range c.Siblings {
		cfg.Siblings = append(cfg.Siblings, s.AddrPort)
	}
	for _, addr := range told {
		// Ports may be missing yet: the relay wants to know the addresses. Behind
		// an address translator they are its own without being the machine's.
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

// limits are what one allocation may do.
func limits(c *config.Config) engine.Limits {
	return engine.Limits{
		JoinerDatagrams: orEndless(c.JoinerDatagrams), JoinerBytes: orEndless(c.JoinerBytes),
		HostDatagrams: orEndless(c.HostDatagrams), HostBytes: orEndless(c.HostBytes),
		UnvalidatedBytes: orEndless(c.UnprovenBytes),
	}
}

// loopback lets a developer's own machine in wherever the relay listens.
var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

// orEndless turns the settings' 0, no limit, into the engine's.
func orEndless(limit int) int {
	if limit == 0 {
		return -1
	}
	return limit
}

func listen(c *config.Config) []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(c.UDP))
	for i, a := range c.UDP {
		addrs[i] = a.AddrPort
	}
	return addrs
}

// ears are who else hears of what the relay tells. They do not block.
type ears struct {
	bound    func(proto.AllocationID)
	ended    func(engine.EndEvent)
	returned func(engine.ReturnEvent)
	drained  func() // a drain began, or was undone
}

// deaf returns those of nobody.
func deaf() ears {
	return ears{
		bound: func(proto.AllocationID) {}, ended: func(engine.EndEvent) {},
		returned: func(engine.ReturnEvent) {}, drained: func() {},
	}
}

// onBind, onEnd and onReturn are told by the relay, and must not block.
func (a *App) onBind(e engine.BindEvent) {
	a.players.bound(e)
	if e.First {
		a.ears.bound(e.ID)
	}
}

func (a *App) onEnd(e engine.EndEvent) {
	a.ears.ended(e)
	a.players.ended(e)
	if e.Reason == engine.EndLost {
		a.restart.lost.Add(1)
	}
}

func (a *App) onReturn(e engine.ReturnEvent) { a.ears.returned(e) }

// seats returns how many seats the relay promises by these settings, 0 for no
// limit, which is why a part of a seat counts as one. A relay of a fleet has a
// limit, since it announces how many are left: as many as it holds allocations.
func (a *App) seats(c *config.Config) int {
	seats := c.MaxSeats
	if seats == 0 && a.opts.Mode == Relay {
		seats = a.most
	}
	if seats == 0 {
		return 0
	}
	return int(min(max(int64(seats)*int64(c.Overcommit)/100, 1), math.MaxInt32))
}

var _ fleet.Engine = advertiser{}
