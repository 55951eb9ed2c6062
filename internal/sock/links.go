package sock

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// Links watches the interfaces that carry listen addresses, so that a server
// can tell silence of its clients from a link of its own that is down. It asks
// the system whenever it is asked, some microseconds per interface of the
// machine, and has no goroutine. It is for one goroutine at a time.
//
// What Down says is a hint and no verdict: an interface may be gone for good,
// as those of containers and tunnels are. So a caller that waits for it to come
// back needs a bound of its own.
type Links struct {
	wanted  []netip.AddrPort
	listing listing
	watched []link
	chosen  bool // watched has been filled
	at      int  // in watched: the link that was down at the last look, -1 = none
}

// link is an interface, by name: one that is made anew has another number.
type link struct {
	name string
	seen bool // it was up and running at some look
}

// listing is where interfaces come from: package net, or a test.
type listing struct {
	interfaces func() ([]net.Interface, error)
	addrs      func(*net.Interface) ([]net.Addr, error)
}

// WatchLinks remembers which interfaces carry addrs, the listen addresses of
// groups. For a wildcard these are all that have an address of its family by
// which others may reach this machine: link-local addresses count only where
// there are no others, and loopback only where there is nothing else. An
// address that no interface has is not watched, and neither is an interface that
// gets its address later. If the system does not answer, the first call of Down
// that gets an answer chooses.
func WatchLinks(addrs []netip.AddrPort) *Links {
	return watchLinks(addrs, listing{net.Interfaces, (*net.Interface).Addrs})
}

func watchLinks(addrs []netip.AddrPort, from listing) *Links {
	l := &Links{wanted: slices.Clone(addrs), listing: from, at: -1}
	l.look()
	return l
}

// Down returns the name of a watched interface that was up and running before,
// at WatchLinks or at an earlier call, and is not now, and whether there is one.
// An interface that has vanished is down; one that is back is up. If the system
// does not answer, the last answer stands.
func (l *Links) Down() (name string, down bool) {
	l.look()
	if l.at < 0 {
		return "", false
	}
	return l.watched[l.at].name, true
}

// look brings the state up to date.
func (l *Links) look() {
	all, err := l.listing.interfaces()
	if err != nil {
		return
	}
	if !l.chosen && !l.choose(all) {
		return
	}
	l.at = -1
	for i := range l.watched {
		w := &l.watched[i]
		switch {
		case running(all, w.name):
			w.seen = true
		case w.seen && l.at < 0:
			l.at = i
		}
	}
}

func running(all []net.Interface, name string) bool {
	const flags = net.FlagUp | net.FlagRunning
	return slices.ContainsFunc(all, func(ifi net.Interface) bool {
		return ifi.Name == name && ifi.Flags&flags == flags
	})
}

// choose fills l.watched, and reports false, changing nothing, when the system
// does not tell the addresses.
func (l *Links) choose(all []net.Interface) bool {
	homes := make([]home, 0, len(all))
	for i := range all {
		addrs, err := l.listing.addrs(&all[i])
		if err != nil {
			return false
		}
		homes = append(homes, newHome(&all[i], addrs))
	}
	for _, addr := range l.wanted {
		for _, name := range carriers(homes, addr.Addr().Unmap()) {
			if !slices.ContainsFunc(l.watched, func(w link) bool { return w.name == name }) {
				l.watched = append(l.watched, link{name: name})
			}
		}
	}
	l.chosen = true
	return true
}

// home is an interface and its addresses.
type home struct {
	name     string
	index    int
	loopback bool
	prefixes []netip.Prefix
}

func newHome(ifi *net.Interface, addrs []net.Addr) home {
	h := home{name: ifi.Name, index: ifi.Index, loopback: ifi.Flags&net.FlagLoopback != 0}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		bits, _ := n.Mask.Size()
		if ip = ip.Unmap(); ip.Is4() && len(n.Mask) == net.IPv6len {
			bits -= 96
		}
		h.prefixes = append(h.prefixes, netip.PrefixFrom(ip, bits))
	}
	return h
}

// carriers returns the names of the interfaces that carry a listen address.
func carriers(homes []home, ip netip.Addr) (names []string) {
	best := reachNone + 1
	for i := range homes {
		h := &homes[i]
		r := reachNone
		switch {
		case ip.IsUnspecified():
			r = h.reach(ip.Is4())
		case h.has(ip):
			r = reachWide
		}
		if r > best {
			best, names = r, names[:0]
		}
		if r == best {
			names = append(names, h.name)
		}
	}
	return names
}

// How far the addresses of one family reach that an interface has.
const (
	reachNone = iota
	reachHost
	reachLink
	reachWide
)

func (h *home) reach(v4 bool) int {
	best := reachNone
	for _, p := range h.prefixes {
		ip := p.Addr()
		switch {
		case ip.Is4() != v4:
		case h.loopback || ip.IsLoopback():
			best = max(best, reachHost)
		case ip.IsLinkLocalUnicast():
			best = max(best, reachLink)
		default:
			best = reachWide
		}
	}
	return best
}

// has reports whether the interface has an address. Loopback has every one of
// its network, such as 127.0.0.2.
func (h *home) has(ip netip.Addr) bool {
	if zone := ip.Zone(); zone != "" && zone != h.name && zone != strconv.Itoa(h.index) {
		return false
	}
	ip = ip.WithZone("")
	return slices.ContainsFunc(h.prefixes, func(p netip.Prefix) bool {
		return p.Addr() == ip || h.loopback && p.Contains(ip)
	})
}
