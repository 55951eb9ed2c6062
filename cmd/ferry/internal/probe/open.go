package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// way is the opened link, behind the bad network, and where it leads.
type way struct {
	sim  *link.Simulation
	to   address.Addr // the server, of a client
	code string       // join code of a host
}

// open opens the link. On an error nothing of it is left.
func open(ctx context.Context, o Options) (way, error) {
	var w way
	l, err := w.link(ctx, o)
	if err != nil {
		return way{}, err
	}
	if w.sim, err = link.NewSimulation(l, link.SimulationConfig{Seed: o.Seed, In: o.In, Out: o.Out}); err != nil {
		return way{}, errors.Join(err, l.Close())
	}
	return w, nil
}

func (w *way) link(ctx context.Context, o Options) (link.Link, error) {
	switch {
	case o.Listen.IsValid():
		return link.OpenUDP(o.Listen)
	case o.Connect.IsValid():
		w.to = address.FromUDP(o.Connect)
		return link.OpenUDP(unspecified(o.Connect))
	}
	ticket, err := w.ticket(ctx, o)
	if err != nil {
		return nil, err
	}
	l, host, err := link.OpenRelay(ctx, client.Config{Ticket: ticket})
	if err != nil {
		return nil, fmt.Errorf("relay at %v: %w", ticket.Server, err)
	}
	w.to = host
	return l, nil
}

// ticket asks the API for an allocation, and a host for its join code.
func (w *way) ticket(ctx context.Context, o Options) (t client.Ticket, err error) {
	if o.Join != "" {
		return client.Redeem(ctx, &o.API, o.Join)
	}
	if t, err = client.Reserve(ctx, &o.API, o.Host, o.Region); err != nil {
		return t, err
	}
	w.code, err = o.API.JoinCode(ctx, t.ID.String())
	return t, err
}

// unspecified is any port of the family of an address.
func unspecified(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Unmap().Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}
