package app

import (
	"net/netip"
	"slices"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/config"
)

// proxyPort is where a reverse proxy is reached unless the settings say.
const proxyPort = 443

// endpoints returns all ways in that players are told: addresses for UDP and
// DTLS, which clients of UTP 1.x do not resolve, and for plain WebSocket, which
// browsers want to have; a name for wss, which its certificate has to bear
// (protocol.md 4.8). The API listens on api.
func endpoints(c *config.Config, told []netip.AddrPort, api netip.AddrPort) []alloc.ServerEndpoint {
	var all []alloc.ServerEndpoint
	for _, addr := range told {
		all = append(all, engine.UDPServerEndpoint(addr))
	}
	if c.DTLS {
		for _, addr := range told {
			e := engine.UDPServerEndpoint(addr)
			e.ConnectionType, e.Secure = "dtls", true
			all = append(all, e)
		}
	}
	web, _ := webEndpoints(c, told, api)
	return append(all, web...)
}

// webEndpoints returns the ways in by WebSocket or, if it is on and there are
// none, why not.
func webEndpoints(c *config.Config, told []netip.AddrPort, api netip.AddrPort) (all []alloc.ServerEndpoint, why string) {
	name := c.AdvertiseName
	if name.Host == "" && len(c.ACMEDomains) > 0 {
		name.Host = c.ACMEDomains[0].Host
	}
	switch {
	case !c.WebSocket:
		return nil, ""
	case !secured(c) && !c.BehindProxy:
		return plainEndpoints(told, api)
	case name.Host == "":
		return nil, "websocket: players are not told of wss, since clients hold its certificate against a name: set advertise_name, or websocket: false"
	}
	port := name.Port
	if port == 0 && c.BehindProxy {
		port = proxyPort
	}
	if port == 0 {
		port = api.Port()
	}
	return []alloc.ServerEndpoint{{
		ConnectionType: "wss", Network: "tcp", Host: name.Host, Port: port, Reliable: true, Secure: true,
	}}, ""
}

// plainEndpoints returns the addresses that players are told anyway, as far as
// the API can be reached there.
func plainEndpoints(told []netip.AddrPort, api netip.AddrPort) (all []alloc.ServerEndpoint, why string) {
	var ips []netip.Addr
	for _, addr := range told {
		ip := addr.Addr()
		if !reaches(ip, api.Addr()) || slices.Contains(ips, ip) {
			continue
		}
		ips = append(ips, ip)
		all = append(all, alloc.ServerEndpoint{
			ConnectionType: "ws", Network: "tcp", Host: ip.String(), Port: api.Port(), Reliable: true,
		})
	}
	if len(all) == 0 {
		return nil, "websocket: players are not told of ws, since the API listens on " + api.Addr().String() +
			", which they do not reach: set websocket: false, or http"
	}
	return all, ""
}

// reaches reports whether who sends to ip may be heard on listen, which an
// address translator may have made of it.
func reaches(ip, listen netip.Addr) bool {
	if listen.Is6() && listen.IsUnspecified() {
		return true // It hears IPv4 as well.
	}
	return ip.Is4() == listen.Is4() && (!listen.IsLoopback() || ip.IsLoopback())
}
