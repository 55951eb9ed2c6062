package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
)

// IPv4 addresses of the network; see the package documentation.
const (
	relayPort    = 7777
	clientsRange = "198.18.0.0/16"
	peersRange   = "198.19.0.0/16"
	clientsWire  = "198.51.100.2" // clients' end of the link to the relay
	peersWire    = "198.51.100.6"
	victimWire   = "203.0.113.130"
	victimRange  = "198.51.100.128/25"
)

// Addresses of the relay, of the victim, and of the first player in each of
// three namespaces.
var (
	RelayAddr   = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, 77}), relayPort)
	VictimAddr  = netip.AddrFrom4([4]byte{203, 0, 113, 130})
	FirstClient = netip.AddrFrom4([4]byte{198, 18, 0, 1})
	FirstPeer   = netip.AddrFrom4([4]byte{198, 19, 0, 1})
	FirstVictim = netip.AddrFrom4([4]byte{198, 51, 100, 129})
)

// Names of the relay's ends of the three links, and of a router's end of its link to
// clients.
const (
	LinkClients = "clients"
	LinkPeers   = "peers"
	LinkVictim  = "victim"
	LinkLAN     = "lan"
)

// Addresses of both ends of the link between router and clients.
const (
	routerLAN   = "192.0.2.1"
	clientsLAN  = "192.0.2.2"
	routerLAN6  = "2001:db8:3::1"
	clientsLAN6 = "2001:db8:3::2"
)

// Network is the four namespaces and the links between them. It is immutable.
type Network struct {
	Clients, Relay, Peers, Victim Namespace
	Router                        Namespace // between clients and relay; zero: none

	cleanup *CleanupProcess
}

// link is a veth pair between the relay's namespace, or the router's, and another.
type link struct {
	name               string // the end towards the relay
	near, far          Namespace
	relayAddr, farAddr string // addresses of both ends
	local              string // prefix that is local in far, or behind it
}

func (n *Network) links() []link {
	all := []link{
		{LinkClients, n.Relay, n.Clients, "198.51.100.1", clientsWire, clientsRange},
		{LinkPeers, n.Relay, n.Peers, "198.51.100.5", peersWire, peersRange},
		{LinkVictim, n.Relay, n.Victim, "203.0.113.129", victimWire, victimRange},
	}
	if n.Router != (Namespace{}) {
		all[0].far = n.Router
		all = append(all, link{LinkLAN, n.Router, n.Clients, routerLAN, clientsLAN, clientsRange})
	}
	return all
}

// NewNetwork creates the network. The caller closes it; otherwise it is removed
// when the process ends. On error nothing is left.
func NewNetwork() (*Network, error) {
	all, j, err := NewNamespaces("clients", "relay", "peers", "victim")
	if err != nil {
		return nil, err
	}
	return openNetwork(&Network{Clients: all[0], Relay: all[1], Peers: all[2], Victim: all[3], cleanup: j})
}

// NewRoutedNetwork is NewNetwork with a router between clients and relay, and IPv6.
func NewRoutedNetwork() (*Network, error) {
	all, j, err := NewNamespaces("clients", "relay", "peers", "victim", "router")
	if err != nil {
		return nil, err
	}
	n, err := openNetwork(&Network{Clients: all[0], Relay: all[1], Peers: all[2], Victim: all[3], Router: all[4], cleanup: j})
	if err != nil {
		return nil, err
	}
	for _, knob := range []string{"ipv4.ip_forward", "ipv6.conf.all.forwarding"} {
		err = errors.Join(err, n.Router.Set("net."+knob, "1"))
	}
	if err = errors.Join(err, n.AddIPv6()); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func openNetwork(n *Network) (*Network, error) {
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Network) build() error {
	if err := n.Relay.IP("addr add " + RelayAddr.Addr().String() + "/32 dev lo"); err != nil {
		return err
	}
	for _, l := range n.links() {
		if err := l.build(l.far == n.Router); err != nil {
			return err
		}
	}
	return nil
}

// build creates the link. The prefix is local in far unless that is a router.
func (l link) build(routed bool) error {
	relay := l.near
	for _, step := range []func() error{
		func() error {
			return ip("link add " + l.name + " netns " + relay.Name + " type veth peer name relay netns " + l.far.Name)
		},
		// Without this, a GSO message crosses the veth as one datagram.
		func() error { return relay.IP("link set " + l.name + " gso_max_segs 1") },
		func() error { return relay.IP("addr add " + l.relayAddr + "/30 dev " + l.name) },
		func() error { return relay.IP("link set " + l.name + " up") },
		func() error { return l.far.IP("addr add " + l.farAddr + "/30 dev relay") },
		func() error { return l.far.IP("link set relay up") },
		func() error { return l.far.IP("route add default via " + l.relayAddr) },
		l.route,
		func() error {
			if routed {
				return nil
			}
			return l.addLocalRange()
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// route adds the route to the prefix of the link.
func (l link) route() error {
	return l.near.IP("route replace " + l.local + " via " + l.farAddr)
}

// addLocalRange makes every address of the prefix local in far.
func (l link) addLocalRange() error {
	return l.far.IP("route add local " + l.local + " dev lo")
}

// SetLink sets a link up or down at the relay's end and restores its routes, as
// a network manager does.
func (n *Network) SetLink(name string, up bool) error {
	if !up {
		return n.Relay.IP("link set " + name + " down")
	}
	if err := n.Relay.IP("link set " + name + " up"); err != nil {
		return err
	}
	for _, l := range n.links() {
		if l.name == name {
			return l.route()
		}
	}
	return fmt.Errorf("lab: no link is called %s", name)
}

// Close removes the namespaces and every process in them. It may be called more
// than once.
func (n *Network) Close() error { return n.cleanup.Finish() }

// IPv6 prefixes (RFC 3849) of the network after AddIPv6.
const (
	clientsRange6 = "2001:db8:18::/64"
	peersRange6   = "2001:db8:19::/64"
)

// IPv6 addresses of the relay and of the first player in each of two namespaces.
var (
	RelayAddr6   = netip.AddrPortFrom(netip.MustParseAddr("2001:db8:77::77"), relayPort)
	FirstClient6 = netip.MustParseAddr("2001:db8:18::1")
	FirstPeer6   = netip.MustParseAddr("2001:db8:19::1")
)

// link6 is the IPv6 configuration of a link.
type link6 struct {
	name               string // the end towards the relay
	near, far          Namespace
	relayAddr, farAddr string
	local              string
}

// disableDAD disables duplicate address detection for future interfaces, which
// would delay the use of their addresses by a second or two. On a kernel
// without IPv6 it does nothing; AddIPv6 then fails.
func (ns Namespace) disableDAD() error {
	for _, knob := range []string{"all", "default"} {
		err := ns.Set("net.ipv6.conf."+knob+".accept_dad", "0")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// AddIPv6 adds IPv6 addresses to the relay, clients and peers.
func (n *Network) AddIPv6() error {
	if err := n.Relay.IP("addr add " + RelayAddr6.Addr().String() + "/128 dev lo nodad"); err != nil {
		return err
	}
	all := []link6{
		{LinkClients, n.Relay, n.Clients, "2001:db8:1::1", "2001:db8:1::2", clientsRange6},
		{LinkPeers, n.Relay, n.Peers, "2001:db8:2::1", "2001:db8:2::2", peersRange6},
	}
	if n.Router != (Namespace{}) {
		all[0].far = n.Router
		all = append(all, link6{LinkLAN, n.Router, n.Clients, routerLAN6, clientsLAN6, clientsRange6})
	}
	for _, l := range all {
		if err := l.build(l.far == n.Router); err != nil {
			return err
		}
	}
	return nil
}

func (l link6) build(routed bool) error {
	relay := l.near
	for _, step := range []func() error{
		func() error { return relay.IP("addr add " + l.relayAddr + "/64 dev " + l.name + " nodad") },
		func() error { return l.far.IP("addr add " + l.farAddr + "/64 dev relay nodad") },
		func() error { return l.far.IP("-6 route add default via " + l.relayAddr) },
		func() error { return relay.IP("-6 route add " + l.local + " via " + l.farAddr) },
		func() error {
			if routed {
				return nil
			}
			return l.far.IP("-6 route add local " + l.local + " dev lo")
		},
		// The route makes the addresses local for receiving; sending needs this.
		func() error { return l.far.Set("net.ipv6.ip_nonlocal_bind", "1") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
