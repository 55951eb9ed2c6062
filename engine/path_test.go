package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"

	"github.com/ferryrelay/ferry/proto"
)

// Games and attacks on paths that are not validated. docs/security.md has the figures.

// pathGame is a game, without the relay's header: what one player sends to its host, and
// gets from it.
type pathGame struct {
	name           string
	upEvery, every time.Duration
	upBytes, bytes int
	host           bool // it is the host that changes its network
	players        int
}

// TestGameOnUnvalidatedPath: a player or a host that gets another address in mid-match plays on.
func TestGameOnUnvalidatedPath(t *testing.T) {
	const shot, tenth = time.Second / 60, time.Second / 10
	for _, game := range []pathGame{
		{name: "small", upEvery: 33 * time.Millisecond, upBytes: 22, every: 33 * time.Millisecond, bytes: 22, players: 1},
		{name: "shooter", upEvery: shot, upBytes: 100, every: shot, bytes: 1000, players: 1},
		{name: "spectator", upEvery: 0, every: 5 * time.Millisecond, bytes: 1000 - proto.RelayOverhead, players: 1},
		{name: "host of ten, shooter", upEvery: shot, upBytes: 200, every: shot, bytes: 1000, players: 10, host: true},
		{name: "host of ten that only receives", upEvery: 50 * time.Millisecond, upBytes: 1000 - proto.RelayOverhead, players: 10, host: true},
	} {
		for name, to := range map[string]endpoint.Endpoint{
			"validated": udp("198.18.0.0:50001"), "another network": udp("203.0.113.9:50000"), "other family": udp("[2001:db8::9]:50000"),
		} {
			t.Run(game.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				game.play(t, to)
			})
		}
	}
}

// TestPathOfNewHost: the path of a player that takes the place of its host is judged by the call for that place,
// and so it is after a crash.
func TestPathOfNewHost(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		r := newMigrationRig(t, 1)
		r.restart(true) // The run before wrote no file.
		r.host = r.rig.host(udpN(0), 20)
		r.players = []*mReservation{r.joiner(udpN(1), r.host)}
		r.fromHost(message(11, r.host.id))
		r.caller = udpN(40).AddrPort().Addr()
		if elsewhere {
			r.caller = netip.MustParseAddr("203.0.113.9")
		}
		card := r.mustAsk(0, r.host)
		for i, when := range []string{"at first", "after a crash"} {
			r.bind(card, udpN(40), uint16(i+1))
			if got := r.shared.table.IsValidated(r.entry(card).Handle); got == elsewhere {
				t.Errorf("called from elsewhere: %t, %s: validated: %t", elsewhere, when, got)
			}
			r.restart(true)
		}
	}
}

// isDue reports whether something is due in millisecond i.
func isDue(every time.Duration, i int) bool {
	return every > 0 && time.Duration(i)*time.Millisecond/every != time.Duration(i-1)*time.Millisecond/every
}

func (g pathGame) play(t *testing.T, to endpoint.Endpoint) {
	r := newRig(t, Config{})
	r.caller = netip.MustParseAddr("198.18.0.0")
	host, hostAt := r.host(udpN(0), g.players), udpN(0)
	var players []*mReservation
	var at []endpoint.Endpoint
	for i := range g.players {
		at = append(at, udp(fmt.Sprintf("198.18.0.0:%d", 40_001+i)))
		players = append(players, r.joiner(at[i], host))
	}
	moves, mover := &at[0], players[0]
	if g.host {
		moves, mover = &hostAt, host
	}
	r.bind(mover, to, 2)
	*moves = to
	sent, got, in, out := 0, 0, 0, 0
	const d = 20 * time.Second
	relay := func(from endpoint.Endpoint, pkt []byte, to endpoint.Endpoint) {
		if from == *moves {
			in += len(pkt)
		} else if to == *moves {
			sent, out = sent+1, out+len(pkt)
		}
		r.feed(from, pkt)
	}
	r.each(time.Millisecond, d, func(i int) {
		for n, p := range players {
			if isDue(g.upEvery, i) {
				relay(at[n], relayMessage(p.id, host.id, g.upBytes), hostAt)
			}
			if isDue(g.every, i) {
				relay(hostAt, relayMessage(host.id, p.id, g.bytes), at[n])
			}
			if i%3000 == 0 {
				relay(at[n], pingMessage(p.id), endpoint.Endpoint{})
			}
		}
		if i%3000 == 0 {
			relay(hostAt, pingMessage(host.id), endpoint.Endpoint{})
		}
		n, _ := r.delivered(to)
		got += n
	})
	t.Logf("%d B/s from it, %d B/s to it, %.1f %% arrive", in/int(d.Seconds()), out/int(d.Seconds()), 100*float64(got)/float64(sent))
	if got != sent || sent == 0 {
		t.Errorf("%d of %d RELAYs arrive", got, sent)
	}
}

// crowdGame is what each player of a large match sends to its host, and gets from it.
type crowdGame struct {
	name           string
	upEvery, every time.Duration
	upBytes        int
	snapshot       []int // content of the RELAYs of a tick
}

// TestCrowdOnLimitedPaths: 80 players of a match, whose calls came from another network than
// their datagrams do, get all of their game: behind a carrier's pool of addresses, and behind a
// container's proxy or a NodePort, where all have one private address. The log has what they need
// beyond three bytes for each one from them, which budget.go and docs/security.md quote.
func TestCrowdOnLimitedPaths(t *testing.T) {
	const players, seconds = 80, 4
	shooter := crowdGame{name: "shooter", upEvery: time.Second / 60, upBytes: 100, every: time.Second / 60, snapshot: []int{1000}}
	snapshots := crowdGame{name: "snapshots of 3 kB", upEvery: time.Second / 20, upBytes: 72, every: time.Second / 20,
		snapshot: []int{1362, 1362, 330}} // the profile netcode-8p-20hz of package bench
	spectators := crowdGame{name: "spectators", every: 5 * time.Millisecond, snapshot: []int{1000 - proto.RelayOverhead}}
	for _, c := range []struct {
		behind, source string // of the player with that number
		games          []crowdGame
	}{
		{"one address of a pool", "203.0.113.9:%[2]d", []crowdGame{shooter, snapshots}},
		{"a pool", "203.0.113.%[1]d:%[2]d", []crowdGame{snapshots}},
		{"an IPv6 pool", "[2001:db8:0:%[1]x00::1]:%[2]d", []crowdGame{snapshots}},
		{"RFC 1918", "172.17.0.1:%[2]d", []crowdGame{spectators}},
		{"RFC 6598", "100.64.0.1:%[2]d", []crowdGame{spectators}},
		{"RFC 4193", "[fd00::1]:%[2]d", []crowdGame{spectators}},
		{"loopback", "127.0.0.1:%[2]d", []crowdGame{spectators}},
		{"IPv6 loopback", "[::1]:%[2]d", []crowdGame{spectators}},
	} {
		for _, game := range c.games {
			t.Run(c.behind+"/"+game.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, Config{
					Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7777")}, Limits: Limits{HostDatagrams: -1, HostBytes: -1},
				})
				r.caller = netip.MustParseAddr("198.18.0.0")
				r.shared.budgets.rates.hostLinks = table.Rate{IntervalMicros: 1000, Burst: 1000}
				host := r.host(udpN(0), players)
				var at []endpoint.Endpoint
				numbers := make(map[endpoint.Endpoint]int)
				var joined []*mReservation
				in := players * (maxBind + 276)
				for i := range players {
					at = append(at, udp(fmt.Sprintf(c.source, i, 40_000+i)))
					numbers[at[i]] = i
					joined = append(joined, r.joiner(at[i], host))
				}
				r.take()
				var sent, got [players]int
				out := 0
				r.each(time.Millisecond, seconds*time.Second, func(i int) {
					for n, p := range joined {
						if isDue(game.upEvery, i) {
							pkt := relayMessage(p.id, host.id, game.upBytes)
							in += len(pkt)
							r.feed(at[n], pkt)
						}
						for _, size := range game.snapshot {
							if isDue(game.every, i) {
								pkt := relayMessage(host.id, p.id, size)
								sent[n]++
								out += len(pkt)
								r.feed(udpN(0), pkt)
							}
						}
						if i%3000 == 0 {
							r.feed(at[n], pingMessage(p.id))
						}
					}
					for _, s := range r.take() {
						if n, ok := numbers[s.to]; ok && len(s.pkt) > 22 {
							got[n]++
						}
					}
				})
				t.Logf("%.2f MB/s to them, of which %.2f MB/s beyond three bytes for each one from them", float64(out)/seconds/1e6,
					float64(out-3*in)/seconds/1e6)
				if got != sent {
					t.Errorf("of %d RELAYs for each one %v arrive", sent[0], got)
				}
			})
		}
	}
}

// TestEachStarvedReceiverIsReported: messages of one host to 80 players are dropped, and OnRefuse
// names each of them, a few times.
func TestEachStarvedReceiverIsReported(t *testing.T) {
	const players = 80
	reports := make(map[proto.AllocationID]int)
	r := newRig(t, Config{Hooks: Hooks{Private: privateapi.Hooks{OnRefuse: func(e privateapi.RefuseEvent) {
		if e.Outcome == dropUnvalidated.String() {
			reports[e.Peer]++
		}
	}}}})
	r.caller = netip.MustParseAddr("198.18.0.0")
	r.shared.budgets.rates.hostLinks = table.Rate{IntervalMicros: 1000, Burst: 1000}
	r.shared.budgets.rates.excessPath = table.NewQuota(0, 1)
	host := r.host(udpN(0), players)
	var joined []*mReservation
	var at []endpoint.Endpoint
	for i := range players {
		at = append(at, udp(fmt.Sprintf("203.0.113.9:%d", 40_000+i)))
		joined = append(joined, r.joiner(at[i], host))
	}
	const seconds = 20
	r.each(50*time.Millisecond, seconds*time.Second, func(i int) {
		for n, p := range joined {
			r.feed(udpN(0), relayMessage(host.id, p.id, 1000))
			if i%60 == 0 {
				r.feed(at[n], pingMessage(p.id))
			}
		}
	})
	for n, p := range joined {
		if got := reports[proto.AllocationID(p.id)]; got < 1 || got > seconds/2 {
			t.Errorf("player %d was reported %d times in %d s", n, got, seconds)
		}
	}
}

func (r *rig) forgedPaths(host *mReservation, source func(i int) endpoint.Endpoint, n int) (forged []*mReservation) {
	r.t.Helper()
	for i := range n {
		forged = append(forged, r.joiner(source(i), host))
	}
	return forged
}

// TestForgedPaths: an attacker binds allocations with the sources of silent victims, and has
// its host relay to them as much as it can: 3 bytes for each one from there go there, and
// besides 256 kB/s to each, 5 MB/s to a network that is not private and 64 MB/s in all.
// Meanwhile a player in another network that has changed it gets all of its game.
func TestForgedPaths(t *testing.T) {
	for _, c := range []struct {
		name            string
		networks, paths int // paths in each network
		perSecond       int
		everyMillis     int // a datagram of 1,438 bytes to each path
		otherPlays      bool
		victim          string
	}{
		{"one", 1, 1, 256_000, 1, true, "203.0.113.%[1]d:40000"},
		{"IPv4 /24", 1, 24, 5_000_000, 4, true, "203.0.113.%[1]d:40000"},
		{"IPv6 /48", 1, 24, 5_000_000, 4, true, "[2001:db8:0:%[1]x::1]:40000"},
		{"networks", 12, 24, 60_000_000, 4, true, "203.0.%[2]d.%[1]d:40000"},
		{"relay", 20, 18, 64_000_000, 4, false, "203.0.%[2]d.%[1]d:40000"},
		{"private networks", 2, 180, 64_000_000, 4, false, "10.0.%[2]d.%[1]d:40000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{Limits: Limits{HostDatagrams: -1, HostBytes: -1}})
			r.caller = netip.MustParseAddr("198.18.0.0")
			r.shared.budgets.rates.hostLinks = table.Rate{IntervalMicros: 1000, Burst: 1000}
			host, own := r.host(udpN(0), 1000), r.host(udp("198.18.0.0:50000"), 1)
			victim := func(i int) endpoint.Endpoint {
				return udp(fmt.Sprintf(c.victim, i%c.paths, i/c.paths))
			}
			forged := r.forgedPaths(host, victim, c.networks*c.paths)
			in := len(forged) * (maxBind + 276)
			foreign := udp("192.0.2.1:40000")
			player := r.joiner(foreign, own)
			r.take()
			const seconds = 3
			out, sent, got := 0, 0, 0
			r.each(time.Millisecond, seconds*time.Second, func(i int) {
				for n, f := range forged {
					if (i+n)%c.everyMillis == 0 {
						r.feed(udpN(0), relayMessage(host.id, f.id, 1400))
					}
				}
				if i%1000 == 0 { // keep alive
					for n, f := range forged {
						pkt := pingMessage(f.id)
						in += len(pkt)
						r.feed(victim(n), pkt)
					}
				}
				if i%5 == 0 {
					sent++
					r.feed(udp("198.18.0.0:50000"), relayMessage(own.id, player.id, 1000-proto.RelayOverhead))
				}
				for _, s := range r.take() {
					switch {
					case s.to == foreign:
						got++
					case s.to != udpN(0):
						out += len(s.pkt)
					}
				}
			})
			most := 3*in + c.perSecond*(seconds+1)
			t.Logf("%d bytes for %d with their sources in %d s, want at most %d", out, in, seconds, most)
			if out > most || out < c.perSecond*seconds {
				t.Errorf("%d bytes went to the victims for %d with their sources, want %d to %d", out, in, c.perSecond*seconds, most)
			}
			if c.otherPlays && got != sent {
				t.Errorf("%d of %d RELAYs arrive at a player in another network", got, sent)
			}
		})
	}
}

// TestForgedMultiple: whatever an attacker sends with the source of a victim, and its host to
// the victim, at most three bytes go there for each one, replies included, and besides what
// the gate of the path lets through, here next to nothing.
func TestForgedMultiple(t *testing.T) {
	victim := udp("203.0.113.130:40000")
	for name, send := range map[string]func(r *rig, i int, host, forged *mReservation) []byte{
		"PING": func(_ *rig, _ int, _, forged *mReservation) []byte { return pingMessage(forged.id) },
		"BIND": func(_ *rig, i int, _, forged *mReservation) []byte { return signed(forged, uint16(2+i/4), forged.key) },
		"RELAY without a link": func(_ *rig, i int, _, forged *mReservation) []byte {
			return relayMessage(forged.id, mID{byte(i), byte(i >> 8), 1}, 0)
		},
		"CONNECT_REQUEST": func(_ *rig, _ int, _, forged *mReservation) []byte {
			return connectMessage(forged.id, forged.ticket)
		},
		"DISCONNECT": func(_ *rig, _ int, host, forged *mReservation) []byte {
			return message(9, forged.id, host.id)
		},
		"link and DISCONNECT of the host": func(r *rig, _ int, host, forged *mReservation) []byte {
			r.feed(udpN(0), message(9, host.id, forged.id))
			return connectMessage(forged.id, forged.ticket)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			r.caller = netip.MustParseAddr("198.18.0.0")
			r.shared.budgets.rates.excessPath = table.NewQuota(0, 1)
			host := r.host(udpN(0), 4)
			forged, err := r.reserve(2, host, "forged", 0)
			if err != nil {
				t.Fatal(err)
			}
			in, out := 0, 0
			feed := func(pkt []byte) {
				in += len(pkt)
				r.feed(victim, pkt)
			}
			feed(signed(forged, 1, forged.key))
			feed(connectMessage(forged.id, forged.ticket))
			rnd := rand.New(rand.NewPCG(1, 2))
			r.each(50*time.Millisecond, 10*time.Second, func(i int) {
				feed(send(r, i, host, forged))
				for range 20 {
					r.feed(udpN(0), relayMessage(host.id, forged.id, rnd.IntN(100)))
				}
				for _, s := range r.take() {
					if s.to == victim {
						out += len(s.pkt)
					}
				}
			})
			t.Logf("%.3f bytes for each one", float64(out)/float64(in))
			if out > 3*in+200 || out < 100 {
				t.Errorf("%d bytes went to the victim for %d with its source", out, in)
			}
		})
	}
}
