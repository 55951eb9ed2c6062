package engine

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// lowestPort: below it are services that might answer a reply in turn (echo, chargen, DNS, NTP,
// TFTP), but no game client.
const lowestPort = 1024

// sources decides which source addresses are refused, since no client has them: forged, they would
// make the relay send to itself, to another relay, or to a service of its own machine. Only banned
// changes after newSources.
type sources struct {
	banned   atomic.Pointer[endpoint.PrefixSet]
	loopback bool                        // allowed, since the relay listens there or advertises it
	private  bool                        // allowed
	ports    []uint16                    // of relays
	relays   map[netip.AddrPort]struct{} // our own sockets, and other relays
}

func newSources(listen []netip.AddrPort, own []netip.Addr, advertised []alloc.ServerEndpoint, cfg *Config) *sources {
	s := &sources{private: cfg.AllowPrivateSources || !hasPublic(advertised), relays: map[netip.AddrPort]struct{}{}}
	add := func(a netip.AddrPort) {
		s.relays[a] = struct{}{}
		if !slices.Contains(s.ports, a.Port()) {
			s.ports = append(s.ports, a.Port())
		}
	}
	for _, l := range listen {
		s.loopback = s.loopback || l.Addr().IsLoopback()
		if !l.Addr().IsUnspecified() {
			add(l)
			continue
		}
		for _, ip := range own {
			add(netip.AddrPortFrom(ip, l.Port()))
		}
	}
	for _, e := range advertised {
		ip, err := netip.ParseAddr(e.Host)
		s.loopback = s.loopback || err == nil && ip.IsLoopback()
	}
	for _, a := range cfg.Siblings {
		add(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
	return s
}

// A relay with a public address refuses private networks, which may be the operator's own.
func hasPublic(advertised []alloc.ServerEndpoint) bool {
	for _, e := range advertised {
		if ip, err := netip.ParseAddr(e.Host); err == nil && ip.IsGlobalUnicast() && !isPrivate(ip) {
			return true
		}
	}
	return false
}

// The networks are those of RFC 1918, RFC 4193 and RFC 6598.
func isPrivate(ip netip.Addr) bool {
	return ip.IsPrivate() || sharedSpace.Contains(ip)
}

var sharedSpace = netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, 0}), 10)

// SetBannedSources makes the relay drop what comes from these networks over UDP and DTLS, in place
// of those of the last call. A player that is bound over plain UDP stays bound, see [Server.Kick];
// other transports check addresses themselves. Any goroutine may call it.
func (s *Server) SetBannedSources(all []netip.Prefix) {
	if len(all) == 0 {
		s.shared.sources.banned.Store(nil)
		return
	}
	s.shared.sources.banned.Store(endpoint.NewPrefixSet(all))
}

// A session that is no UDP source has completed a handshake, so its address is not forged.
func (s *sources) refuses(ep endpoint.Endpoint) (outcome, bool) {
	if banned := s.banned.Load(); banned != nil && banned.Contains(ep.AddrPort().Addr()) {
		return dropForbidden, true
	}
	switch ep.Kind() {
	case endpoint.KindUDP4:
		if s.isForbidden4(uint32(ep.Lo)) {
			return dropForbidden, true
		}
	case endpoint.KindUDP6:
		if s.isForbidden6(ep.Hi, ep.Lo) {
			return dropForbidden, true
		}
	default:
		return 0, false
	}
	port := ep.Port()
	if port < lowestPort {
		return dropForbidden, true
	}
	for _, p := range s.ports {
		if p != port {
			continue
		}
		if _, ok := s.relays[ep.AddrPort()]; ok {
			return dropForbidden, true
		}
	}
	return dropPrivate, isPrivateSource(ep) && !s.private
}

// isForbidden4 refuses this network, loopback, link-local, multicast, reserved and broadcast.
func (s *sources) isForbidden4(ip uint32) bool {
	switch ip >> 24 {
	case 0:
		return true
	case 127:
		return !s.loopback
	case 169:
		return ip>>16 == 169<<8|254
	}
	return ip>>24 >= 224
}

// isForbidden6 refuses loopback, the rest of ::/64, link-local and multicast.
func (s *sources) isForbidden6(hi, lo uint64) bool {
	if hi == 0 {
		return lo != 1 || !s.loopback
	}
	return hi>>56 == 0xFF || hi>>54 == 0xFE80>>6
}

// isPrivateSource is isPrivate of an endpoint over UDP.
func isPrivateSource(ep endpoint.Endpoint) bool {
	if ep.Kind() == endpoint.KindUDP4 {
		ip := uint32(ep.Lo)
		return ip>>24 == 10 || ip>>22 == 100<<2|1 || ip>>20 == 172<<4|1 || ip>>16 == 192<<8|168
	}
	return ep.Kind() == endpoint.KindUDP6 && ep.Hi>>57 == 0xFC>>1
}

// isLoopbackSource is for endpoints that are not refused: ::1 is the only one in ::/64.
func isLoopbackSource(ep endpoint.Endpoint) bool {
	return ep.Kind() == endpoint.KindUDP4 && uint32(ep.Lo)>>24 == 127 || ep.Kind() == endpoint.KindUDP6 && ep.Hi == 0
}

// ownAddresses returns none if they cannot be read.
func ownAddresses() (all []netip.Addr) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				all = append(all, ip.Unmap())
			}
		}
	}
	return all
}
