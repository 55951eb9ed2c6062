package sock

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// Links watches the interfaces that carry listen addresses, so that a server
// can distinguish clients that send nothing from a link of its own that is down. Each
// call queries the system, some microseconds per interface of the
// machine; there is no goroutine. It is for one goroutine at a time.
//
// Down returns a hint: an interface may be removed for good, as those of containers
// and tunnels are. So a caller that waits for it to come back needs a time limit.
type Links struct {
	wanted  []netip.AddrPort
	source  interfaceSource
	watched []link
	chosen  bool // watched has been filled
	at      int  // in watched: the link that was down at the last query, -1 = none
}

// link is an interface, by name: one that is created again has another number.
type link struct {
	name string
	seen bool // it was up and running at some query
}

type interfaceSource struct {
	interfaces func() ([]net.Interface, error)
	addrs      func(*net.Interface) ([]net.Addr, error)
}

// WatchLinks remembers which interfaces carry addrs, the listen addresses of
// groups. For a wildcard these are all that have an address of its family by
// which others may reach this machine: link-local addresses count only where
// there are no others, and loopback only where there is nothing else. An
// interface that gets its address later is not watched.
func WatchLinks(addrs []netip.AddrPort) *Links {
	return watchLinks(addrs, interfaceSource{net.Interfaces, (*net.Interface).Addrs})
}

func watchLinks(addrs []netip.AddrPort, from interfaceSource) *Links {
	l := &Links{wanted: slices.Clone(addrs), source: from, at: -1}
	l.refresh()
	return l
}

// Down returns the name of a watched interface that was up and running before,
// at WatchLinks or at an earlier call, and is not now, and whether there is one.
// If the system does not answer, the last answer stands.
func (l *Links) Down() (name string, down bool) {
	l.refresh()
	if l.at < 0 {
		return "", false
	}
	return l.watched[l.at].name, true
}

func (l *Links) refresh() {
	all, err := l.source.interfaces()
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
// does not return the addresses.
func (l *Links) choose(all []net.Interface) bool {
	nics := make([]nic, 0, len(all))
	for i := range all {
		addrs, err := l.source.addrs(&all[i])
		if err != nil {
			return false
		}
		nics = append(nics, newNIC(&all[i], addrs))
	}
	for _, addr := range l.wanted {
		for _, name := range carriers(nics, addr.Addr().Unmap()) {
			if !slices.ContainsFunc(l.watched, func(w link) bool { return w.name == name }) {
				l.watched = append(l.watched, link{name: name})
			}
		}
	}
	l.chosen = true
	return true
}

type nic struct {
	name     string
	index    int
	loopback bool
	prefixes []netip.Prefix
}

func newNIC(ifi *net.Interface, addrs []net.Addr) nic {
	h := nic{name: ifi.Name, index: ifi.Index, loopback: ifi.Flags&net.FlagLoopback != 0}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			h.prefixes = append(h.prefixes, p)
		}
	}
	return h
}

func carriers(nics []nic, ip netip.Addr) (names []string) {
	best := scopeNone + 1
	for i := range nics {
		h := &nics[i]
		r := scopeNone
		switch {
		case ip.IsUnspecified():
			r = h.scope(ip.Is4())
		case h.has(ip):
			r = scopeGlobal
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

const (
	scopeNone = iota
	scopeHost
	scopeLink
	scopeGlobal
)

// scope returns the widest scope of the addresses of a family.
func (h *nic) scope(v4 bool) int {
	best := scopeNone
	for _, p := range h.prefixes {
		ip := p.Addr()
		switch {
		case ip.Is4() != v4:
		case h.loopback || ip.IsLoopback():
			best = max(best, scopeHost)
		case ip.IsLinkLocalUnicast():
			best = max(best, scopeLink)
		default:
			best = scopeGlobal
		}
	}
	return best
}

// has reports whether the interface has an address. Loopback has every one of
// its network, such as 127.0.0.2.
func (h *nic) has(ip netip.Addr) bool {
	if zone := ip.Zone(); zone != "" && zone != h.name && zone != strconv.Itoa(h.index) {
		return false
	}
	ip = ip.WithZone("")
	return slices.ContainsFunc(h.prefixes, func(p netip.Prefix) bool {
		return p.Addr() == ip || h.loopback && p.Contains(ip)
	})
}
