package evict

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

type modelConn struct {
	address  netip.Prefix
	progress int
	conn     *Conn[int]
}

// modelFirst returns the connection that ends first: of the largest network, and within it
// again, the one without progress for longest.
func modelFirst(all []*modelConn) *modelConn {
	for level := range levels {
		all = modelLargest(all, level)
	}
	var first *modelConn
	for _, c := range all {
		if first == nil || c.progress < first.progress {
			first = c
		}
	}
	return first
}

// modelLargest returns the connections of the network of a level with the highest score.
func modelLargest(all []*modelConn, level int) (best []*modelConn) {
	groups := make(map[netip.Prefix][]*modelConn)
	for _, c := range all {
		key := containing(c.address, level)
		groups[key] = append(groups[key], c)
	}
	for _, g := range groups {
		switch a, b := modelScore(g, level), modelScore(best, level); {
		case best == nil || a > b:
			best = g
		case a == b && modelFirst(g).progress < modelFirst(best).progress:
			best = g
		}
	}
	return best
}

func modelScore(group []*modelConn, from int) (score int) {
	for level := from; level < len(levels); level++ {
		count := make(map[netip.Prefix]int)
		for _, c := range group {
			key := containing(c.address, level)
			count[key]++
			score = max(score, count[key]*levels[level].weight)
		}
	}
	return score
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	addresses := []netip.Prefix{{}}
	for i := range 24 {
		four := netip.AddrFrom4([4]byte{10, byte(i % 3), byte(i % 5), byte(i)})
		six := netip.MustParseAddr(fmt.Sprintf("2001:db%x:%x:%x00::", i%2, i%3, i))
		addresses = append(addresses, netip.PrefixFrom(four, 32), netip.PrefixFrom(six, 56))
	}
	var s Networks[int]
	var all []*modelConn
	remove := func(i int) {
		s.Remove(all[i].conn)
		all[i] = all[len(all)-1]
		all = all[:len(all)-1]
	}
	for n := range 6_000 {
		kind := rnd.IntN(10)
		switch grow := n%1000 < 500; {
		case len(all) == 0 || kind < 4 || kind < 6 && grow:
			c := &modelConn{address: addresses[rnd.IntN(1+rnd.IntN(len(addresses)))], progress: n}
			c.conn = s.Add(c.address, n)
			all = append(all, c)
		case kind < 8 && len(all) < 60:
			c := all[rnd.IntN(len(all))]
			c.progress = n
			s.Touch(c.conn)
		default:
			remove(rnd.IntN(len(all)))
		}
		if s.Len() != len(all) {
			t.Fatalf("step %d: %d connections, want %d", n, s.Len(), len(all))
		}
		first, want := s.First(), modelFirst(all)
		if (first == nil) != (want == nil) || first != nil && first != want.conn {
			t.Fatalf("step %d: the first is %+v, want %+v", n, first, want)
		}
		address := addresses[rnd.IntN(len(addresses))]
		var of *modelConn
		count := 0
		for _, c := range all {
			if c.address == address {
				count++
				if of == nil || c.progress < of.progress {
					of = c
				}
			}
		}
		if got := s.FirstOf(address); s.Count(address) != count || (got == nil) != (of == nil) || got != nil && got != of.conn {
			t.Fatalf("step %d: %v has %d connections, want %d; the first is %+v, want %+v", n, address, s.Count(address), count, got, of)
		}
	}
	for len(all) > 0 {
		remove(0)
	}
	if s.First() != nil || len(s.all) != 0 || len(s.root.parts) != 0 || s.Len() != 0 {
		t.Errorf("%d networks are left", len(s.all))
	}
}

// TestNetworksFairness fills a table from networks of an attacker and lets each newcomer
// take the place of another connection: players of other networks keep theirs.
func TestNetworksFairness(t *testing.T) {
	t.Parallel()
	const places = 4096
	for name, attacker := range map[string]func(i int) string{
		"one address":         func(int) string { return "198.51.100.1" },
		"64 addresses":        func(i int) string { return fmt.Sprintf("198.51.100.%d", i%64) },
		"a /16":               func(i int) string { return fmt.Sprintf("198.51.%d.%d", i/200%200, i%200) },
		"a /24 of each of 64": func(i int) string { return fmt.Sprintf("198.%d.0.%d", i%64, i/64%200) },
		"the /56s of a /48":   func(i int) string { return fmt.Sprintf("2001:db8:1:%x00::1", i%256) },
		"the /48s of a /32":   func(i int) string { return fmt.Sprintf("2001:db8:%x::1", i%60000) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s Networks[string]
			honest := 0
			add := func(addr string, who string) {
				if s.Len() == places {
					c := s.First()
					s.Remove(c)
					if c.Value == "honest" {
						honest--
					}
				}
				a := netip.MustParseAddr(addr)
				bits := 32
				if a.Is6() {
					bits = 56
				}
				p, _ := a.Prefix(bits)
				s.Add(p, who)
			}
			for i := range 100 { // 20 homes of one provider, and 100 of another over IPv6
				add(fmt.Sprintf("203.0.%d.1", i%20), "honest")
				add(fmt.Sprintf("2001:db9:%x::1", i), "honest")
				honest += 2
			}
			for i := range 5 * places {
				add(attacker(i), "attacker")
			}
			if honest != 200 {
				t.Errorf("%d of 200 players are left", honest)
			}
		})
	}
}
