package sock

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// maxAssigned bounds the numbers that Locals gives: they have 16 bits.
const maxAssigned = 1<<16 - 1

// ErrLocals is returned by [Group.Locals] for addresses that cannot be numbered.
var ErrLocals = errors.New("sock: local addresses cannot be numbered")

// Locals returns the numbers of local addresses, in their order, and makes
// those that are missing. An [endpoint.Endpoint] with such a number is sent to from that
// address, also before anything has arrived there: so one socket can speak for
// many addresses of this machine. It is for programs that know their addresses
// from the start, which may be up to 65,535; what only arrives is numbered up
// to a bound of 1,024. The error wraps ErrLocals when the group does not listen
// on a wildcard, an address is of another family or has a zone, or there are
// too many.
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
