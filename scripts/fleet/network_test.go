//go:build lab && linux

package fleet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ferryrelay/ferry/scripts/lab"
)

// Sizes of the fleet, and the regions of its relays.
const (
	relayCount = 3
	apiCount   = 2
	eu, us     = "eu", "us"
)

var regions = [relayCount]string{eu, eu, us}

// Ranges of players and how many addresses each relay's players have of them.
const (
	hostRange, joinerRange = 19, 18 // second byte of 198.x.0.0/16
	perRelay               = 4096
)

const (
	playersAddr = "203.0.113.2"
	storeAddr   = "10.77.0.5:6379"
)

func relayAddr(i int) string { return fmt.Sprintf("203.0.113.%d", 11+i) }

// relayName is the host name that players get for WebSocket: there a proxy takes
// TLS off, in whose place the laboratory's players say ws to the relay itself.
func relayName(i int) string { return fmt.Sprintf("relay%d.fleet.example", i+1) }

func apiAddr(i int) string { return fmt.Sprintf("203.0.113.%d", 21+i) }

// firstPlayer is the first address of the players of a relay on one side.
func firstPlayer(side byte, relay int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, side, byte(relay * perRelay / 256), 1})
}

// network is the namespaces and the bridge between them. It is fixed by
// newNetwork.
type network struct {
	players, store lab.Namespace
	relays, apis   []lab.Namespace

	bridge  lab.Namespace
	janitor *lab.CleanupProcess
}

// newNetwork makes the network. On error nothing is left.
func newNetwork() (*network, error) {
	roles := []string{"bridge", "players", "store"}
	for i := range relayCount {
		roles = append(roles, fmt.Sprintf("relay%d", i+1))
	}
	for i := range apiCount {
		roles = append(roles, fmt.Sprintf("api%d", i+1))
	}
	all, j, err := lab.NewNamespaces(roles...)
	if err != nil {
		return nil, err
	}
	n := &network{
		bridge: all[0], players: all[1], store: all[2],
		relays: all[3 : 3+relayCount], apis: all[3+relayCount:], janitor: j,
	}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *network) close() error { return n.janitor.Finish() }

func (n *network) build() error {
	err := errors.Join(n.bridge.IP("link add bridge type bridge"), n.bridge.IP("link set bridge up"))
	err = errors.Join(err, n.attach(n.players, "players", playersAddr+"/24"), n.attach(n.store, "store", "10.77.0.5/24"))
	for i, ns := range n.relays {
		err = errors.Join(err, n.attach(ns, fmt.Sprintf("relay%d", i+1), relayAddr(i)+"/24", inside(relayAddr(i))+"/24"))
	}
	for i, ns := range n.apis {
		err = errors.Join(err, n.attach(ns, fmt.Sprintf("api%d", i+1), apiAddr(i)+"/24", inside(apiAddr(i))+"/24"))
	}
	for _, second := range []int{hostRange, joinerRange} {
		to := fmt.Sprintf("198.%d.0.0/16", second)
		err = errors.Join(err, n.players.IP("route add local "+to+" dev lo"))
		for _, ns := range n.relays {
			err = errors.Join(err, ns.IP("route add "+to+" via "+playersAddr))
		}
	}
	return err
}

// inside is the private address of a public one: they end alike.
func inside(public string) string {
	b := netip.MustParseAddr(public).As4()
	return netip.AddrFrom4([4]byte{10, 77, 0, b[3]}).String()
}

// attach links a namespace to the bridge.
func (n *network) attach(ns lab.Namespace, port string, addrs ...string) error {
	steps := []error{
		n.bridge.IP("link add " + port + " type veth peer name eth0 netns " + ns.Name),
		n.bridge.IP("link set " + port + " master bridge"),
		n.bridge.IP("link set " + port + " up"),
		// Datagrams that leave as one message would cross as one.
		ns.IP("link set eth0 gso_max_segs 1"),
		ns.IP("link set eth0 up"),
	}
	for _, addr := range addrs {
		steps = append(steps, ns.IP("addr add "+addr+" dev eth0"))
	}
	return errors.Join(steps...)
}
