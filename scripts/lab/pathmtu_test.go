//go:build lab && linux

package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// narrowLink is the link between a router and the clients, whose path has a smaller MTU than
// the relay's interface.
type narrowLink struct {
	*lab
	clients *sync.WaitGroup
}

// narrowCase is a path of IPv6, or of IPv4, that is narrow in both directions, or in one.
type narrowCase struct {
	mtu      int
	down, up bool // to the player, from the player
	v4, dtls bool
}

func (c narrowCase) String() string {
	name := fmt.Sprintf("IPv6 %d", c.mtu)
	if c.v4 {
		name = fmt.Sprintf("IPv4 %d", c.mtu)
	}
	if c.dtls {
		name += " dtls"
	}
	switch {
	case !c.up:
		name += " down"
	case !c.down:
		name += " up"
	}
	return name
}

// narrow sets the MTU of the path, of which no host has learnt anything yet.
func (n narrowLink) narrow(c narrowCase) {
	n.Helper()
	router, player := n.net.Router, n.net.Clients
	link, down, up := 1500, 1500, 1500 // of the devices, and of what the router forwards by IPv6
	switch {
	case c.down && c.up:
		link, down = c.mtu, c.mtu
	case c.down:
		down = c.mtu
	case c.up:
		up = c.mtu
	}
	for _, step := range []func() error{
		func() error { return router.IP(fmt.Sprint("link set lan mtu ", link)) },
		func() error { return player.IP(fmt.Sprint("link set relay mtu ", link)) },
		func() error { return router.Set("net.ipv6.conf.lan.mtu", strconv.Itoa(down)) },
		func() error { return router.Set("net.ipv6.conf.relay.mtu", strconv.Itoa(up)) },
		func() error { return n.net.Relay.IP("-6 route flush cache") },
		func() error { return player.IP("-6 route flush cache") },
	} {
		if err := step(); err != nil {
			n.Fatal(err)
		}
	}
}

func (n narrowLink) match(ctx context.Context, c narrowCase, content int) clientMatch {
	n.Helper()
	host, player, _, err := AllocateMatch(n.Context(), n.relay.API(n.net.Peers, 0), api.AllocateRequest{MaxConnections: 2})
	if err != nil {
		n.Fatal(err)
	}
	cfg := GameClientConfig{Transport: "udp", Relay: RelayAddr6, Rate: 100, Sizes: []int{content}}
	hostAt, playerAt := FirstPeer6, FirstClient6
	if c.dtls {
		cfg.Transport = "dtls"
	}
	if c.v4 {
		cfg.Relay, hostAt, playerAt = RelayAddr, FirstPeer, FirstClient
	}
	cfg.Namespace, cfg.Local, cfg.Player, cfg.Peers = n.net.Peers, hostAt, host, []proto.AllocationID{idOf(player)}
	m := clientMatch{host: NewGameClient(cfg)}
	cfg.Namespace, cfg.Local, cfg.Player, cfg.Peers = n.net.Clients, playerAt, player, []proto.AllocationID{idOf(host)}
	m.player = NewGameClient(cfg)
	for _, x := range m.clients() {
		n.clients.Go(func() { x.Run(ctx) })
	}
	return m
}

// play plays one match for each size of content, and checks that all but a first datagram
// arrive.
func (n narrowLink) play(c narrowCase, contents ...int) (matches []clientMatch) {
	n.Helper()
	ctx, cancel := context.WithCancel(n.Context())
	n.Cleanup(func() { cancel(); n.clients.Wait() })
	for _, content := range contents {
		matches = append(matches, n.match(ctx, c, content))
	}
	const enough = 50 // datagrams in each direction
	testkit.Within(n.T, 20*time.Second, "all clients send", func() bool {
		for _, m := range matches {
			if m.host.Counts().Sent < enough || m.player.Counts().Sent < enough {
				return false
			}
		}
		return true
	})
	settleMatches(matches)
	for i, m := range matches {
		host, player := m.host.Counts(), m.player.Counts()
		n.Logf("content of %d bytes: the player gets %d of %d, the host %d of %d", contents[i], player.Received, host.Sent,
			host.Received, player.Sent)
		if player.Received+mayLose < host.Sent || host.Received+mayLose < player.Sent {
			n.Errorf("content of %d bytes does not arrive", contents[i])
		}
	}
	return matches
}

// mayLose is how many datagrams of one size may be lost until a host has learnt the MTU of
// its path: what it sends within a round trip.
const mayLose = 2

// TestPathMTU: content of any size arrives at, and from, a player behind a path whose MTU is
// below the largest message of the relay, but for the first datagram that does not fit. The
// program in the kernel relays what fits every path, and leaves the rest to the sockets.
func TestPathMTU(t *testing.T) {
	for _, mode := range []string{"off", "tc"} {
		t.Run(mode, func(t *testing.T) {
			l := newFastLab(t, fastCase{mode: mode, routed: true}, nil)
			for _, c := range []narrowCase{
				{mtu: 1280, down: true, up: true}, {mtu: 1400, down: true, up: true}, {mtu: 1428, down: true, up: true},
				{mtu: 1480, down: true, up: true},
				{mtu: 1400, down: true}, {mtu: 1280, up: true}, {mtu: 1280, down: true, up: true, v4: true},
				{mtu: 1400, down: true, up: true, dtls: true},
			} {
				t.Run(c.String(), func(t *testing.T) {
					n := narrowLink{l.with(t), new(sync.WaitGroup)}
					n.narrow(c)
					fast := n.metric("ferry_fast_datagrams_total")
					contents := []int{1000, 1320, 1360, 1400}
					if c.dtls {
						contents = contents[:3] // more goes to no player over DTLS
					}
					matches := n.play(c, contents...)
					if fast = n.metric("ferry_fast_datagrams_total") - fast; (fast > 50) != (mode == "tc" && !c.dtls) {
						t.Errorf("the program relayed %.0f datagrams", fast)
					}
					why := n.ctl("why", matches[0].player.id().String())
					if says := strings.Contains(why, fmt.Sprintf("its path takes packets of %d bytes", c.mtu)); says != (c.down && !c.v4) {
						t.Errorf("ferry ctl why:\n%s", why)
					}
				})
			}
		})
	}
}

// TestForgedPacketTooBig: a Packet Too Big that anybody has sent makes large messages leave in
// fragments of 1,280 bytes, and loses none. One that says less has no effect.
func TestForgedPacketTooBig(t *testing.T) {
	for _, mode := range []string{"off", "tc"} {
		t.Run(mode, func(t *testing.T) {
			n := narrowLink{newFastLab(t, fastCase{mode: mode, routed: true}, nil), new(sync.WaitGroup)}
			wide := narrowCase{mtu: 1500}
			n.narrow(wide)
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(func() { cancel(); n.clients.Wait() })
			m := n.match(ctx, wide, 1400)
			sent := func(more uint64) {
				before := m.host.Counts().Sent
				testkit.Within(t, 20*time.Second, "the host sends", func() bool { return m.host.Counts().Sent >= before+more })
			}
			sent(1)
			saysNarrow := func() bool {
				return strings.Contains(n.ctl("why", m.player.id().String()), "its path takes packets of 1280")
			}
			for _, mtu := range []uint32{68, 1279} {
				n.forgePacketTooBig(mtu, m.player.LocalAddr())
			}
			sent(20)
			if saysNarrow() {
				t.Error("the kernel takes a path for narrower than every path is")
			}
			testkit.Within(t, 20*time.Second, "the kernel takes a forged message for true", func() bool {
				n.forgePacketTooBig(1280, m.player.LocalAddr())
				return saysNarrow()
			})
			sent(50)
			settleMatches([]clientMatch{m})
			if host, player := m.host.Counts(), m.player.Counts(); host.Sent != player.Received {
				t.Errorf("the player gets %d of %d", player.Received, host.Sent)
			}
		})
	}
}

func (n narrowLink) forgePacketTooBig(mtu uint32, about netip.AddrPort) {
	n.Helper()
	relay, to := RelayAddr6.Addr().As16(), about.Addr().As16()
	m := []byte{2, 0, 0, 0} // type, code, checksum, which the kernel computes
	m = binary.BigEndian.AppendUint32(m, mtu)
	m = append(m, 6<<4, 0, 0, 0, 0x05, 0xA6, 17, 64) // IPv6: 1,446 bytes of UDP
	m = append(append(m, relay[:]...), to[:]...)
	for _, field := range []uint16{RelayAddr6.Port(), about.Port(), 1446, 0xFFFF} {
		m = binary.BigEndian.AppendUint16(m, field)
	}
	err := n.net.Router.Do(func() error {
		c, err := net.ListenIP("ip6:ipv6-icmp", &net.IPAddr{})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.WriteToIP(append(m, make([]byte, 1000)...), &net.IPAddr{IP: relay[:]})
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
}
