package process

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/server/config"
)

const proxyPort = 443

// endpoints returns the server endpoints that are advertised to players: addresses for
// UDP and DTLS, since clients of UTP 1.x resolve no names, and for plain WebSocket; a name
// for wss, which its certificate must contain. The API listens on api.
func endpoints(c *config.Config, advertised []netip.AddrPort, api netip.AddrPort) []alloc.ServerEndpoint {
	var all []alloc.ServerEndpoint
	for _, addr := range advertised {
		all = append(all, engine.UDPServerEndpoint(addr))
	}
	for _, addr := range advertised {
		e := engine.UDPServerEndpoint(addr)
		e.ConnectionType, e.Secure = "dtls", true
		all = append(all, e)
	}
	web, _ := webEndpoints(c, advertised, api)
	return append(all, web...)
}

// webEndpoints returns the endpoints for WebSocket or, if it is on and there are none,
// the reason.
func webEndpoints(c *config.Config, advertised []netip.AddrPort, api netip.AddrPort) (all []alloc.ServerEndpoint, why string) {
	name := c.AdvertiseName
	switch {
	case !c.WebSocket:
		return nil, ""
	case c.ACME && name.Host == "":
		return addressEndpoints("wss", advertised, api)
	case !hasTLS(c) && !isBehindProxy(c):
		return addressEndpoints("ws", advertised, api)
	case name.Host == "":
		return nil, "websocket: wss is not advertised, since clients check its certificate against a name: set advertise_name, or websocket: false"
	}
	port := name.Port
	if port == 0 && isBehindProxy(c) {
		port = proxyPort
	}
	if port == 0 {
		port = api.Port()
	}
	return []alloc.ServerEndpoint{{
		ConnectionType: "wss", Network: "tcp", Host: name.Host, Port: port, Reliable: true, Secure: true,
	}}, ""
}

// addressEndpoints returns the endpoints for WebSocket at the advertised addresses: ws, or wss with a
// certificate for each of them.
func addressEndpoints(kind string, advertised []netip.AddrPort, api netip.AddrPort) (all []alloc.ServerEndpoint, why string) {
	var ips []netip.Addr
	for _, addr := range advertised {
		ip := addr.Addr()
		if !isReachable(ip, api.Addr()) || slices.Contains(ips, ip) {
			continue
		}
		ips = append(ips, ip)
		all = append(all, alloc.ServerEndpoint{
			ConnectionType: kind, Network: "tcp", Host: ip.String(), Port: api.Port(), Reliable: true, Secure: kind == "wss",
		})
	}
	if len(all) == 0 {
		return nil, "websocket: " + kind + " is not advertised, since the API listens on " + api.Addr().String() +
			", which players cannot reach: set websocket: false, or http"
	}
	return all, ""
}

// isReachable reports whether a connection to ip may arrive at listen, perhaps through an
// address translator.
func isReachable(ip, listen netip.Addr) bool {
	switch {
	case listen.Is6() && listen.IsUnspecified():
		return true // It accepts IPv4 as well.
	case listen.IsLinkLocalUnicast():
		return false
	}
	return ip.Is4() == listen.Is4() && (!listen.IsLoopback() || ip.IsLoopback())
}

// ErrAdvertise is wrapped by the error about a relay that listens on a wildcard, where the
// address for players cannot be determined.
var ErrAdvertise = errors.New("the address for players is not known; set the public one with --advertise IP")

// ErrLinkLocal is wrapped by the error about a link-local address of the relay: it refuses
// link-local sources, so that no player could bind there.
var ErrLinkLocal = errors.New("the relay cannot be used at a link-local address: use a global or private one")

// advertise returns the addresses for players, one per listen address: that of the
// settings for its family, else the listen address, else, for a wildcard, the machine's
// only address of that family in own.
func advertise(listen []netip.AddrPort, hosts []config.Host, own []netip.Addr) ([]netip.AddrPort, error) {
	if err := distinct(listen, hosts); err != nil {
		return nil, err
	}
	var advertised []netip.AddrPort
	for _, l := range listen {
		addr, ok := configuredHost(l, hosts)
		if !ok && !l.Addr().IsUnspecified() {
			addr, ok = l, true
		}
		if !ok {
			addr, ok = onlyAddress(l, own)
		}
		if !ok {
			return nil, fmt.Errorf("%w (the relay listens on %s)", ErrAdvertise, l)
		}
		for _, a := range []netip.AddrPort{l, addr} {
			if a.Addr().IsLinkLocalUnicast() {
				return nil, fmt.Errorf("%w (%s)", ErrLinkLocal, a.Addr())
			}
		}
		advertised = append(advertised, addr)
	}
	return advertised, nil
}

// distinct refuses an advertised address that has no effect.
func distinct(listen []netip.AddrPort, hosts []config.Host) error {
	seen := make(map[bool]netip.Addr)
	for _, h := range hosts {
		if first, twice := seen[h.IP.Is4()]; twice {
			return fmt.Errorf("advertise: %s and %s are of one address family", first, h.IP)
		}
		seen[h.IP.Is4()] = h.IP
		matches := false
		for _, l := range listen {
			matches = matches || l.Addr().Is4() == h.IP.Is4()
		}
		if !matches {
			return fmt.Errorf("advertise: the relay listens on no address of the family of %s", h.IP)
		}
	}
	return nil
}

func configuredHost(l netip.AddrPort, hosts []config.Host) (netip.AddrPort, bool) {
	for _, h := range hosts {
		if h.IP.Is4() != l.Addr().Is4() {
			continue
		}
		if h.Port != 0 {
			return netip.AddrPortFrom(h.IP, h.Port), true
		}
		return netip.AddrPortFrom(h.IP, l.Port()), true
	}
	return netip.AddrPort{}, false
}

func onlyAddress(l netip.AddrPort, own []netip.Addr) (found netip.AddrPort, ok bool) {
	for _, ip := range own {
		if ip.Is4() != l.Addr().Is4() {
			continue
		}
		if ok {
			return netip.AddrPort{}, false
		}
		found, ok = netip.AddrPortFrom(ip, l.Port()), true
	}
	return found, ok
}

// ownAddresses returns the addresses of this machine at which players may reach it. In
// serve these are the public ones; behind an address translator the operator must set
// them. In dev they include private ones, and loopback for a family with none or several.
func ownAddresses(mode Mode) []netip.Addr {
	var own []netip.Addr
	var families [2]int
	for _, ip := range machineAddresses() {
		if isPublic(ip) || mode == Dev && ip.IsPrivate() {
			own = append(own, ip)
			families[family(ip)]++
		}
	}
	if mode != Dev {
		return own
	}
	return orLoopback(own, families)
}

func machineAddresses() (ips []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil // As if there were none: the operator must set the address.
	}
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			ips = append(ips, prefix.Addr().Unmap())
		}
	}
	return ips
}

func orLoopback(own []netip.Addr, families [2]int) []netip.Addr {
	var kept []netip.Addr
	for _, ip := range own {
		if families[family(ip)] == 1 {
			kept = append(kept, ip)
		}
	}
	for _, ip := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		if families[family(ip)] != 1 {
			kept = append(kept, ip)
		}
	}
	return kept
}

func family(ip netip.Addr) int {
	if ip.Is4() {
		return 0
	}
	return 1
}

// isPublic reports whether an address can be reached from everywhere. 100.64/10
// is shared address space of providers (RFC 6598).
func isPublic(ip netip.Addr) bool {
	shared := netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, 0}), 10)
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !shared.Contains(ip)
}

// endpointsAt returns the endpoints of a relay that listens there, and logs them. The port of the API is at api,
// invalid if there is none.
func endpointsAt(o *Options, listen []netip.AddrPort, api netip.AddrPort) ([]alloc.ServerEndpoint, error) {
	addrs, err := advertise(listen, o.Config.Advertise, ownAddresses(o.Mode))
	if err != nil {
		return nil, err
	}
	// Regions have one address for QoS probes and one URL, the first.
	slices.SortStableFunc(addrs, func(x, y netip.AddrPort) int { return family(x.Addr()) - family(y.Addr()) })
	all := endpoints(&o.Config, addrs, api)
	var texts []string
	for _, e := range all {
		texts = append(texts, e.ConnectionType+"://"+net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))))
	}
	o.Logger.Info("endpoints for players", "endpoints", texts)
	return all, nil
}
