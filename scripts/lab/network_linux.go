package lab

import (
	"errors"
	"fmt"
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

	janitor *Janitor
}

// link is one veth from the relay's namespace to another.
type link struct {
	name     string // the relay's end
	far      Namespace
	near, to string // addresses of both ends
	local    string // range that is local at the far end
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
	n := &Network{Clients: all[0], Relay: all[1], Peers: all[2], Victim: all[3], janitor: j}
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
		func() error { return relay.IP("addr add " + l.near + "/30 dev " + l.name) },
		func() error { return relay.IP("link set " + l.name + " up") },
		func() error { return l.far.IP("addr add " + l.to + "/30 dev relay") },
		func() error { return l.far.IP("link set relay up") },
		func() error { return l.far.IP("route add default via " + l.near) },
		func() error { return l.route(relay) },
		func() error { return l.localise() },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// route tells the relay where the range of the link is.
func (l link) route(relay Namespace) error {
	return relay.IP("route replace " + l.local + " via " + l.to)
}

// localise makes every address of the range one of the far end's own.
func (l link) localise() error {
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
func (n *Network) Close() error { return n.janitor.Finish() }
