package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
)

// Addresses of the laboratory, IPv4; doc.go has the map.
const (
	relayPort    = 7777
	clientsRange = "198.18.0.0/16"
	peersRange   = "198.19.0.0/16"
	clientsWire  = "198.51.100.2" // far end of the relay's link to clients
	peersWire    = "198.51.100.6"
	victimWire   = "203.0.113.130"
	victimRange  = "198.51.100.128/25"
)

// Addresses of the relay and of the victim, and of the first player at each of
// three places.
var (
	RelayAddr   = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, 77}), relayPort)
	VictimAddr  = netip.AddrFrom4([4]byte{203, 0, 113, 130})
	FirstClient = netip.AddrFrom4([4]byte{198, 18, 0, 1})
	FirstPeer   = netip.AddrFrom4([4]byte{198, 19, 0, 1})
	FirstVictim = netip.AddrFrom4([4]byte{198, 51, 100, 129})
)

// Names of the relay's ends of the three links.
const (
	LinkClients = "clients"
	LinkPeers   = "peers"
	LinkVictim  = "victim"
)

// Network is the four namespaces and the links between them. Its fields are
// fixed by NewNetwork.
type Network struct {
	Clients, Relay, Peers, Victim Namespace

	cleanup *CleanupProcess
}

// link is one veth from the relay's namespace to another.
type link struct {
	name               string // the relay's end
	far                Namespace
	relayAddr, farAddr string // addresses of both ends
	local              string // range that is local at the far end
}

func (n *Network) links() []link {
	return []link{
		{LinkClients, n.Clients, "198.51.100.1", clientsWire, clientsRange},
		{LinkPeers, n.Peers, "198.51.100.5", peersWire, peersRange},
		{LinkVictim, n.Victim, "203.0.113.129", victimWire, victimRange},
	}
}

// NewNetwork makes the network. It has to be closed; a network that is not is
// removed when the process ends. On error nothing is left.
func NewNetwork() (*Network, error) {
	all, j, err := NewNamespaces("clients", "relay", "peers", "victim")
	if err != nil {
		return nil, err
	}
	n := &Network{Clients: all[0], Relay: all[1], Peers: all[2], Victim: all[3], cleanup: j}
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
		if err := l.build(n.Relay); err != nil {
			return err
		}
	}
	return nil
}

func (l link) build(relay Namespace) error {
	for _, step := range []func() error{
		func() error {
			return ip("link add " + l.name + " netns " + relay.Name + " type veth peer name relay netns " + l.far.Name)
		},
		// Datagrams that the relay lets leave as one message would cross as one.
		func() error { return relay.IP("link set " + l.name + " gso_max_segs 1") },
		func() error { return relay.IP("addr add " + l.relayAddr + "/30 dev " + l.name) },
		func() error { return relay.IP("link set " + l.name + " up") },
		func() error { return l.far.IP("addr add " + l.farAddr + "/30 dev relay") },
		func() error { return l.far.IP("link set relay up") },
		func() error { return l.far.IP("route add default via " + l.relayAddr) },
		func() error { return l.route(relay) },
		func() error { return l.addLocalRange() },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// route tells the relay where the range of the link is.
func (l link) route(relay Namespace) error {
	return relay.IP("route replace " + l.local + " via " + l.farAddr)
}

// localise makes every address of the range one of the far end's own.
func (l link) addLocalRange() error {
	return l.far.IP("route add local " + l.local + " dev lo")
}

// SetLink takes a link down or up at the relay's end, with its routes, as the
// network manager of a machine would.
func (n *Network) SetLink(name string, up bool) error {
	if !up {
		return n.Relay.IP("link set " + name + " down")
	}
	if err := n.Relay.IP("link set " + name + " up"); err != nil {
		return err
	}
	for _, l := range n.links() {
		if l.name == name {
			return l.route(n.Relay)
		}
	}
	return fmt.Errorf("lab: no link is called %s", name)
}

// Close removes the namespaces and everything that runs in them. It may be
// called more than once.
func (n *Network) Close() error { return n.cleanup.Finish() }

// Addresses of the laboratory, IPv6 (RFC 3849), where AddIPv6 was called.
const (
	clientsRange6 = "2001:db8:18::/64"
	peersRange6   = "2001:db8:19::/64"
)

// Addresses of the relay, and of the first player at each of two places.
var (
	RelayAddr6   = netip.AddrPortFrom(netip.MustParseAddr("2001:db8:77::77"), relayPort)
	FirstClient6 = netip.MustParseAddr("2001:db8:18::1")
	FirstPeer6   = netip.MustParseAddr("2001:db8:19::1")
)

// link6 is the second family of a link.
type link6 struct {
	name               string // the relay's end
	far                Namespace
	relayAddr, farAddr string
	local              string
}

// quickIPv6 lets no address of interfaces to come be tested for duplicates, for
// which it could not be used for a second or two. A kernel without IPv6 is for
// AddIPv6 to complain about.
func (ns Namespace) disableDAD() error {
	for _, knob := range []string{"all", "default"} {
		err := ns.Set("net.ipv6.conf."+knob+".accept_dad", "0")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// AddIPv6 gives relay, clients and peers addresses of the second family.
func (n *Network) AddIPv6() error {
	if err := n.Relay.IP("addr add " + RelayAddr6.Addr().String() + "/128 dev lo nodad"); err != nil {
		return err
	}
	for _, l := range []link6{
		{LinkClients, n.Clients, "2001:db8:1::1", "2001:db8:1::2", clientsRange6},
		{LinkPeers, n.Peers, "2001:db8:2::1", "2001:db8:2::2", peersRange6},
	} {
		if err := l.build(n.Relay); err != nil {
			return err
		}
	}
	return nil
}

func (l link6) build(relay Namespace) error {
	for _, step := range []func() error{
		func() error { return relay.IP("addr add " + l.relayAddr + "/64 dev " + l.name + " nodad") },
		func() error { return l.far.IP("addr add " + l.farAddr + "/64 dev relay nodad") },
		func() error { return l.far.IP("-6 route add default via " + l.relayAddr) },
		func() error { return relay.IP("-6 route add " + l.local + " via " + l.farAddr) },
		func() error { return l.far.IP("-6 route add local " + l.local + " dev lo") },
		// A route makes an address local, but not yet one to send from.
		func() error { return l.far.Set("net.ipv6.ip_nonlocal_bind", "1") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
