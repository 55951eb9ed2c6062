package lab

import (
	"errors"
	"io/fs"
	"net/netip"
)

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
	name     string // the relay's end
	far      Namespace
	near, to string
	local    string
}

// quickIPv6 lets no address of interfaces to come be tested for duplicates, for
// which it could not be used for a second or two. A kernel without IPv6 is for
// AddIPv6 to complain about.
func (ns Namespace) quickIPv6() error {
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
		func() error { return relay.IP("addr add " + l.near + "/64 dev " + l.name + " nodad") },
		func() error { return l.far.IP("addr add " + l.to + "/64 dev relay nodad") },
		func() error { return l.far.IP("-6 route add default via " + l.near) },
		func() error { return relay.IP("-6 route add " + l.local + " via " + l.to) },
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
