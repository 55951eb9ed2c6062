package process

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/upgrade"
)

var settingOf = map[string]string{apiFile: "http", adminFile: "admin"}

func openPort(parent *upgrade.Parent, name string, addr netip.AddrPort) (*net.TCPListener, error) {
	if parent != nil {
		l, err := parent.Listener(name, addr.String())
		if err != nil {
			return nil, err
		}
		if l, ok := l.(*net.TCPListener); ok {
			return l, nil
		}
	}
	network := "tcp"
	if addr.Addr().Is4() {
		network = "tcp4" // package net would turn 0.0.0.0 into [::]
	}
	l, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, bindError(settingOf[name], "tcp", addr, err)
	}
	return l, nil
}

// ports are the TCP listeners of a process, by the names of the files with which another one takes them
// over.
type ports map[string]*net.TCPListener

// openPorts opens the ports of the mode. A relay of a fleet has that of the API for WebSockets alone.
func openPorts(o *Options) (ports, error) {
	addrs := map[string]netip.AddrPort{adminFile: o.Config.Admin.AddrPort}
	if o.Mode.hasAPI() || o.Config.WebSocket {
		addrs[apiFile] = o.Config.HTTP.AddrPort
	}
	open := make(ports)
	for _, name := range slices.Sorted(maps.Keys(addrs)) {
		l, err := openPort(o.Parent, name, addrs[name])
		if err != nil {
			return open, err
		}
		open[name] = l
	}
	return open, nil
}

// close closes what no server has closed.
func (p ports) close() {
	for _, l := range p {
		_ = l.Close()
	}
}

// addr returns the address of a port, invalid if there is no such port.
func (p ports) addr(name string) netip.AddrPort {
	if p[name] == nil {
		return netip.AddrPort{}
	}
	return p[name].Addr().(*net.TCPAddr).AddrPort()
}

// url returns the address of a port, empty if there is no such port.
func (p ports) url(name string, secure bool) string {
	switch {
	case p[name] == nil:
		return ""
	case secure:
		return "https://" + p.addr(name).String()
	}
	return "http://" + p.addr(name).String()
}

// origins returns the origins of web pages that may call, nil for all.
func origins(c *config.Config) []string {
	if len(c.AllowOrigins) == 0 {
		return nil
	}
	return c.AllowOrigins
}

// Listener is one listen address of the process, with its real port.
type Listener struct {
	Kind string // "udp", "http", "https", "cluster" or "admin"
	Addr netip.AddrPort
}

// Listeners returns all listeners, the relay's first.
func (a *App) Listeners() []Listener {
	var all []Listener
	for _, addr := range a.relay.addrs() {
		all = append(all, Listener{"udp", addr})
	}
	if scheme, _, ok := strings.Cut(a.URL(), ":"); ok {
		all = append(all, Listener{scheme, a.handover.ports.addr(apiFile)})
	}
	if a.member != nil {
		all = append(all, Listener{"cluster", a.member.cluster.Addr()})
	}
	return append(all, Listener{"admin", a.handover.ports.addr(adminFile)})
}

// URL returns the address of the API's port with its scheme, empty if there is
// none.
func (a *App) URL() string { return a.handover.ports.url(apiFile, hasTLS(&a.opts.Config)) }

// AdminURL returns the address of the admin pages.
func (a *App) AdminURL() string { return a.handover.ports.url(adminFile, hasAdminTLS(&a.opts.Config)) }

// Summary names all addresses in one line: udp=…,… http=… cluster=… admin=…, as
// far as they exist.
func (a *App) Summary() string {
	var all, udp []string
	for _, addr := range a.relay.addrs() {
		udp = append(udp, addr.String())
	}
	if len(udp) > 0 {
		all = append(all, "udp="+strings.Join(udp, ","))
	}
	if url := a.URL(); url != "" {
		all = append(all, "http="+url)
	}
	if a.member != nil {
		all = append(all, "cluster="+a.member.cluster.Addr().String())
	}
	return strings.Join(append(all, "admin="+a.AdminURL()), " ")
}
