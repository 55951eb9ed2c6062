package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/proto"
)

// message is a datagram of a game between two participants, which are addresses with ports, or
// allocations if the game used a relay.
type message struct {
	at       int64
	from, to string
	size     int
}

// parseCapture returns the traffic of a capture of one match: the datagrams between the host
// and the others. Its cycle ends the mean time between two datagrams after the last one.
func parseCapture(data []byte, host string) (*bench.Traffic, error) {
	packets, err := readCapture(data)
	if err != nil {
		return nil, err
	}
	c := newConversation(packets)
	if host, err = c.findHost(host); err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(c.all, func(m message) bool { return m.from != host && m.to != host })
	if err := checkLarge(all); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b message) int { return cmp.Compare(a.at, b.at) })
	first, last := all[0].at, all[len(all)-1].at
	if len(all) < 2 || first == last {
		return nil, errors.New("the host has fewer than two datagrams at different times")
	}
	t := &bench.Traffic{Cycle: time.Duration(last-first) * time.Duration(len(all)) / time.Duration(len(all)-1)}
	players := map[string]uint8{}
	for _, m := range all {
		down := m.from == host
		name := m.from
		if down {
			name = m.to
		}
		player, known := players[name]
		if !known {
			if len(players) == 255 {
				return nil, errors.New("the host has more than 255 players")
			}
			player = uint8(len(players))
			players[name] = player
		}
		t.Datagrams = append(t.Datagrams, bench.TrafficDatagram{
			At: time.Duration(m.at - first), Size: uint16(max(m.size, bench.MinTrafficSize)), Player: player, Down: down,
		})
	}
	t.Players = len(players)
	return t, nil
}

func checkLarge(all []message) error {
	large, most := 0, 0
	for _, m := range all {
		if m.size > bench.MaxTrafficSize {
			large, most = large+1, max(most, m.size)
		}
	}
	if large == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d datagrams have more than the %d bytes that a relay forwards; the largest has %d",
		large, len(all), bench.MaxTrafficSize, most)
}

type conversation struct {
	all     []message
	joiners map[string]bool           // allocations that asked to be connected to a host
	names   map[netip.AddrPort]string // of participants
}

// newConversation reads packets. If some are messages of a relay, the game is what RELAY
// messages carry. A capture at the relay has each of them twice, and counts as it was sent to the relay.
func newConversation(packets []packet) *conversation {
	c := &conversation{joiners: map[string]bool{}, names: map[netip.AddrPort]string{}}
	relays, clients := findRelays(packets)
	for _, p := range packets {
		m := message{p.at, p.from.String(), p.to.String(), p.size}
		if len(relays) == 0 {
			c.names[p.from], c.names[p.to] = m.from, m.to
			c.all = append(c.all, m)
			continue
		}
		toRelay := relays[p.to]
		switch t, _ := relayType(p); {
		case t == proto.TypeConnectRequest && toRelay && len(p.content) >= proto.HeaderLen+proto.IDLen:
			c.joiners[proto.AllocationID(p.content[proto.HeaderLen:]).String()] = true
		case t == proto.TypeRelay && (toRelay || clients == 1) && len(p.content) >= proto.HeaderLen+2*proto.IDLen:
			m.from = proto.AllocationID(p.content[proto.HeaderLen:]).String()
			m.to = proto.AllocationID(p.content[proto.HeaderLen+proto.IDLen:]).String()
			m.size -= proto.RelayOverhead
			if c.all = append(c.all, m); toRelay && !relays[p.from] {
				c.names[p.from] = m.from
			}
		}
	}
	return c
}

func relayType(p packet) (proto.Type, bool) {
	t, err := proto.ParseType(p.content)
	return t, err == nil && (t.FromClient() || t.FromServer())
}

// findRelays returns the addresses of relays, by what only clients send, or else by what all
// messages have in common; and the number of their clients.
func findRelays(packets []packet) (relays map[netip.AddrPort]bool, clients int) {
	relays = map[netip.AddrPort]bool{}
	count, total := map[netip.AddrPort]int{}, 0
	for _, p := range packets {
		t, ok := relayType(p)
		if !ok {
			continue
		}
		total++
		count[p.from]++
		count[p.to]++
		if t == proto.TypeBind || t == proto.TypeConnectRequest {
			relays[p.to] = true
		}
	}
	if len(relays) == 0 {
		for addr, n := range count {
			if n == total {
				relays[addr] = true
			}
		}
	}
	return relays, max(len(count)-len(relays), 1)
}

// findHost returns the name of the host: the participant that text says, or the only one that is
// in all datagrams and did not ask to be connected.
func (c *conversation) findHost(text string) (string, error) {
	count := map[string]int{}
	for _, m := range c.all {
		count[m.from]++
		count[m.to]++
	}
	var found []string
	if text == "" {
		for name, n := range count {
			if n == len(c.all) && !c.joiners[name] {
				found = append(found, name)
			}
		}
	} else {
		for addr, name := range c.names {
			if text == name || text == addr.String() || text == addr.Addr().String() {
				found = append(found, name)
			}
		}
		if count[text] > 0 {
			found = append(found, text)
		}
		slices.Sort(found)
		found = slices.Compact(found)
	}
	if len(found) == 1 {
		return found[0], nil
	}
	list := slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(count[b]-count[a], cmp.Compare(a, b)) })
	switch {
	case len(c.all) == 0:
		return "", errors.New("the capture has no UDP datagrams of a game")
	case text != "":
		return "", fmt.Errorf("the host %q is %d of the participants %s", text, len(found), abridge(list))
	}
	return "", fmt.Errorf("%d participants are in all datagrams; name the host, by --traffic-host, of %s", len(found), abridge(list))
}

func abridge(names []string) string {
	const shown = 6
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if len(names) > shown {
		text += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return text
}
