package app

import (
	"net/netip"
	"strings"

	"github.com/ferryrelay/ferry/engine"
)

// Listener is one address that the process hears, with its real port.
type Listener struct {
	Kind string // "udp", "http", "https" or "admin"
	Addr netip.AddrPort
}

// Listeners returns all listeners, the relay's first.
func (a *App) Listeners() []Listener {
	var all []Listener
	for _, addr := range a.relay.Addrs() {
		all = append(all, Listener{"udp", addr})
	}
	return append(all, Listener{a.scheme(), a.api.addr()}, Listener{"admin", a.admin.addr()})
}

func (a *App) scheme() string {
	if a.api.tls {
		return "https"
	}
	return "http"
}

// URL returns the address of the API with its scheme.
func (a *App) URL() string { return a.scheme() + "://" + a.api.addr().String() }

// AdminURL returns the address of the admin pages.
func (a *App) AdminURL() string {
	scheme := "http"
	if a.admin.tls {
		scheme = "https"
	}
	return scheme + "://" + a.admin.addr().String()
}

// Summary names all addresses in one line: udp=…,… http=… admin=….
func (a *App) Summary() string {
	var udp []string
	for _, addr := range a.relay.Addrs() {
		udp = append(udp, addr.String())
	}
	return "udp=" + strings.Join(udp, ",") + " http=" + a.URL() + " admin=" + a.AdminURL()
}

// Stats returns the counts of the relay.
func (a *App) Stats() engine.Stats { return a.relay.Stats() }
