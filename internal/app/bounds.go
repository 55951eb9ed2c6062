package app

import (
	"net/netip"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/memory"
	"github.com/ferryrelay/ferry/internal/metrics"
	"github.com/ferryrelay/ferry/internal/sock"
	"github.com/ferryrelay/ferry/internal/table"
)

// bound decides how many allocations the relay holds, and has the memory
// watched. A developer's machine has neither limit.
func (a *App) bound() {
	c, log := &a.opts.Config, a.opts.Logger
	a.most = c.MaxAllocations
	if a.most == 0 {
		a.most = table.DefaultMaxAllocations
	}
	if a.opts.Mode == Dev {
		return
	}
	a.memory = memory.NewGuard(memory.OfProcess(a.allocations, log))
	limit := a.memory.Stats().Limit
	if limit == 0 {
		return
	}
	fits := memory.Fits(limit, buffers(c), reserved(c))
	switch {
	case fits >= a.most:
	case c.MaxAllocations == 0:
		a.most = fits
		log.Info("max_allocations is what fits into the memory limit", "max_allocations", fits)
	default:
		log.Warn("max_allocations is more than fits into the memory limit: allocations may be refused before",
			"max_allocations", c.MaxAllocations, "fits", fits)
	}
}

// buffers returns the bytes that the sockets' buffers may take.
func buffers(c *config.Config) int64 {
	return int64(processors(c)*len(c.UDP)) * 2 * sock.DefaultBuffer
}

// reserved returns what players may take who come by DTLS or WebSocket.
func reserved(c *config.Config) (w memory.Ways) {
	if c.DTLS {
		w.Sessions = c.MaxDTLSSessions
	}
	if c.WebSocket {
		w.WebSockets, w.Queue = c.MaxWebSockets, int64(queueBytes(c)+websocket.DefaultSendBuffer)
	}
	return w
}

// allocations returns how many there are.
func (a *App) allocations() int { return a.relay.Stats().Allocations }

// room reports whether the memory suffices for one more allocation.
func (a *App) room() bool { return a.memory == nil || a.memory.Admit() }

// refusals count connections to the API that were closed unread: for the limit
// of all, for that of one address, and those of a proxy without a PROXY header.
type refusals struct{ total, address, header atomic.Uint64 }

func (r *refusals) add(why httpapi.Rejection) {
	if why == httpapi.RejectedAddress {
		r.address.Add(1)
	} else {
		r.total.Add(1)
	}
}

// connLimits returns the limits of connections to the API's port, where there is
// room for WebSockets besides: they stay, and must not shut out the calls. Behind
// a proxy of which only that is known, all of them are the proxy's.
func connLimits(c *config.Config, r *refusals) httpapi.ConnLimits {
	limits := httpapi.ConnLimits{
		Total: c.MaxHTTPConnections, PerAddress: c.MaxAddressConnections,
		TrustedProxies: trusted(c), OnReject: r.add,
	}
	if c.WebSocket {
		limits.Total += c.MaxWebSockets
		limits.PerAddress += c.MaxAddressWebSockets
	}
	if c.BehindProxy && len(c.TrustedProxies) == 0 {
		limits.PerAddress = limits.Total
	}
	return limits
}

// proxyConfig says that trusted proxies tell their callers' addresses in front of
// each connection. The limit of connections per address, below, does not see
// these: it counts nobody whom a trusted proxy sent.
func proxyConfig(c *config.Config, r *refusals) websocket.ProxyConfig {
	return websocket.ProxyConfig{
		Proxies:  trusted(c),
		OnRefuse: func(netip.Addr, error) { r.header.Add(1) },
	}
}

func trusted(c *config.Config) []netip.Prefix {
	var all []netip.Prefix
	for _, n := range c.TrustedProxies {
		all = append(all, n.Prefix)
	}
	return all
}

// process returns what the metrics show of the process.
func (a *App) process() metrics.Process {
	p := metrics.Process{
		RefusedTotal: a.refused.total.Load(), RefusedAddress: a.refused.address.Load(),
		RefusedHeader: a.refused.header.Load(),
	}
	if a.relay == nil {
		return p
	}
	p.MaxAllocations, p.Awaited = a.most, a.restart.awaited(a.relay.Stats().Rebuilt)
	p.Lost, p.Storing = a.restart.lost.Load(), a.restart.storing.Load()
	p.ForeignSockets = a.foreign.Sockets()
	if a.memory != nil {
		st := a.memory.Stats()
		p.MemoryLimit, p.MemoryTight, p.MemoryRefused = st.Limit, st.Tight, st.Refused
	}
	return p
}
