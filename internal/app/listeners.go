package app

import (
	"net/netip"
	"strings"

	"github.com/ferryrelay/ferry/engine"
)

// Listener is one address that the process hears, with its real port.
type Listener struct {
	Kind string // "udp", "http", "https", "cluster" or "admin"
	Addr netip.AddrPort
}

// Listeners returns all listeners, the relay's first.
func (a *App) Listeners() []Listener {
	var all []Listener
	for _, addr := range a.udp() {
		all = append(all, Listener{"udp", addr})
	}
	if a.api != nil {
		all = append(all, Listener{a.scheme(), a.api.addr()})
	}
	if a.member != nil {
		all = append(all, Listener{"cluster", a.member.cluster.Addr()})
	}
	return append(all, Listener{"admin", a.admin.addr()})
}

// udp returns where the relay hears, nothing if there is none.
func (a *App) udp() []netip.AddrPort {
	if a.relay == nil {
		return nil
	}
	return a.relay.Addrs()
}

// apiAddr returns where the API's port is, nothing if there is none.
func (a *App) apiAddr() netip.AddrPort {
	if a.api == nil {
		return netip.AddrPort{}
	}
	return a.api.addr()
}

func (a *App) scheme() string {
	if a.api.tls {
		return "https"
	}
	return "http"
}

// URL returns the address of the API's port with its scheme, nothing if there is
// none.
func (a *App) URL() string {
	if a.api == nil {
		return ""
	}
	return a.scheme() + "://" + a.api.addr().String()
}

// AdminURL returns the address of the admin pages.
func (a *App) AdminURL() string {
	scheme := "http"
	if a.admin.tls {
		scheme = "https"
	}
	return scheme + "://" + a.admin.addr().String()
}

// Summary names all addresses in one line: udp=…,… http=… cluster=… admin=…, as
// far as there are such.
func (a *App) Summary() string {
	var all, udp []string
	for _, addr := range a.udp() {
		udp = append(udp, addr.String())
	}
	if len(udp) > 0 {
		all = append(all, "udp="+strings.Join(udp, ","))
	}
	if a.api != nil {
		all = append(all, "http="+a.URL())
	}
	if a.member != nil {
		all = append(all, "cluster="+a.member.cluster.Addr().String())
	}
	return strings.Join(append(all, "admin="+a.AdminURL()), " ")
}

// Stats returns the counts of the relay, none if there is none.
func (a *App) Stats() engine.Stats {
	if a.relay == nil {
		return engine.Stats{}
	}
	return a.relay.Stats()
}
