//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// maxDelayRise is the goal of the rise of the 99th percentile of honest delays
	// under attack.
	maxDelayRise = 2 * time.Millisecond
	// returnGoal is the goal of the time until a player that joins, or whose address
	// has changed, is served under attack.
	returnGoal = 3 * time.Second
)

// returnLimit is returnGoal, or twice that in the quick form: its machine is busy.
func returnLimit() time.Duration {
	if *long {
		return returnGoal
	}
	return 2 * returnGoal
}

// with returns the same laboratory for a subtest.
func (l *lab) with(t *testing.T) *lab {
	return &lab{T: t, net: l.net, relay: l.relay, cfg: l.cfg, rng: l.rng}
}

// attackOn runs an attack while the matches of a fleet play, and adds a line to
// the table: no more than 0.1 % of the datagrams may be lost, and no match may
// end. An attack during which the kernel dropped datagrams is repeated, and in the
// long form one during which the delay rose: other processes may be the cause.
func (l *lab) attackOn(f *Fleet, r attackResult, attack func()) {
	l.Helper()
	lost := f.Settle().Lost()
	for try := 1; ; try++ {
		f.Delays()
		time.Sleep(*attackDuration / 4)
		calm := Quantile(f.Delays(), 0.99)
		before, dropped := f.SettleTo(lost), l.droppedDatagrams()
		f.Delays()
		attack()
		r.p99 = Quantile(f.Delays(), 0.99)
		after := f.SettleTo(before.Lost())
		lost = after.Lost()
		got := after.Since(before)
		r.honest, r.damage = delivered(got), lossy(got) || ended(got)
		l.Logf("%v; p99 %v, before the attack %v", got, r.p99, calm)
		dropped = l.droppedDatagrams() - dropped
		r.slow = l.slow
		delayed := *long && r.p99 > calm+maxDelayRise
		if (r.damage && dropped > 0 || !r.damage && delayed) && try < maxScans {
			l.Logf("the machine dropped %d datagrams, delayed %v: the attack is repeated", dropped, delayed)
			continue
		}
		if delayed && !r.slow {
			l.Errorf("p99 of delay rose from %v to %v, goal at most %v more", calm, r.p99, maxDelayRise)
		}
		break
	}
	recordAttack(l.T, r)
}

// ended reports whether a game was ended. Unlike requireNoFailures it permits
// ERRORs to the attacker's allocation at a player's endpoint: clients ignore them.
func ended(c Counts) bool { return c.Fatal() > 0 || c.Failed > 0 || c.Disconnects > 0 }

// forgedBinds returns a function that returns valid BINDs of p with a forged
// source, each with the next nonce.
func forgedBinds(p *player, from netip.AddrPort) func(uint64) []byte {
	var signer proto.Signer
	var bind, packet []byte
	return func(uint64) []byte {
		p.Nonce++
		bind = signer.Append(bind[:0], proto.Bind{Nonce: p.Nonce, ConnectionData: p.data}, &p.key)
		packet = AppendIPv4UDP(packet[:0], from, RelayAddr, bind)
		return packet
	}
}

// forgedBindsAndPings returns a function that returns these BINDs and PINGs in
// turn, so that the relay hears the endpoint of p.
func forgedBindsAndPings(p *player, from netip.AddrPort) func(uint64) []byte {
	bind, ping := forgedBinds(p, from), AppendIPv4UDP(nil, from, RelayAddr, proto.Ping{ID: p.id, Number: 1}.Append(nil))
	return func(n uint64) []byte {
		if n%2 == 0 {
			return bind(n)
		}
		return ping
	}
}

// TestAttackBind verifies that valid BINDs of another allocation, with the
// forged source of a player, do not displace the player.
func TestAttackBind(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--bind-timeout", "2m"} })
	f, _ := l.fleet(l.players(1, 30))
	victim := f.joinerAddr(0)
	backend := l.relay.API(l.net.Clients, 0)
	rates := []int{10, 1000}
	if *long {
		rates = []int{1, 10, 50, 1000}
	}
	for _, rate := range rates {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			l := l.with(t)
			next := forgedBinds(l.allocateHost(backend), victim)
			r := attackResult{attack: "forged BINDs with a player's source", rate: perSecond(float64(rate), "BINDs"), state: "1 allocation"}
			l.attackOn(f, r, func() { l.flood(rate, *attackDuration, next) })
		})
	}
	t.Run("every port", func(t *testing.T) {
		// Each allocation stays below the limit of signature checks for one prefix.
		const rate, attackers = 10_000, 500
		l := l.with(t)
		var binds []func(uint64) []byte
		for range attackers {
			binds = append(binds, forgedBinds(l.allocateHost(backend), victim))
		}
		r := attackResult{
			attack: "forged BINDs from every port of a player's address", rate: perSecond(rate, "BINDs"),
			state: fmt.Sprintf("%d allocations", attackers),
		}
		l.attackOn(f, r, func() {
			l.flood(rate, max(*attackDuration, (1<<16/rate+1)*time.Second), func(n uint64) []byte {
				packet := binds[n%attackers](n)
				SetSource(packet, netip.AddrPortFrom(victim.Addr(), uint16(n)))
				return packet
			})
		})
	})
	// Only PINGs come from the player, one each 3 s.
	t.Run("during a pause", func(t *testing.T) {
		l := l.with(t)
		next := forgedBindsAndPings(l.allocateHost(backend), victim)
		f.pause(true)
		ctx, cancel := context.WithCancel(t.Context())
		var attack sync.WaitGroup
		attack.Go(func() { l.floodUntil(ctx, 1000, next) })
		time.Sleep(max(*attackDuration, 2*time.Duration(pingPeriod)))
		f.Mark()
		f.pause(false)
		resumed := testkit.Poll(returnLimit(), func() bool { return f.Resumed(returnLimit()) == 1 })
		took := Quantile(f.Resumptions(), 1)
		r := attackResult{attack: "forged BINDs and PINGs after a pause of the game", rate: perSecond(1000, "datagrams"), state: "1 allocation"}
		before := f.Settle()
		time.Sleep(*attackDuration)
		got := f.SettleTo(before.Lost()).Since(before)
		cancel()
		attack.Wait()
		t.Logf("resumed %v after %v; then %v", resumed, took, got)
		r.honest = fmt.Sprintf("back after %v, then %s", took.Round(time.Millisecond), delivered(got))
		r.damage = !resumed || lossy(got) || ended(f.Counts())
		recordAttack(t, r)
	})
	l.requireTraffic(f, 10*time.Second)
}

func (f *Fleet) joinerAddr(n int) netip.AddrPort {
	addr := f.cfg.Joiners.First
	for range n {
		addr = addr.Next()
	}
	return netip.AddrPortFrom(addr, f.sides[1].sockets[0].group.Addr().Port())
}

func (l *lab) dialRelay(at netip.AddrPort) *net.UDPConn {
	l.Helper()
	var conn *net.UDPConn
	err := l.net.Clients.Do(func() (err error) {
		conn, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(at), net.UDPAddrFromAddrPort(RelayAddr))
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { conn.Close() })
	return conn
}

func (l *lab) messages(at netip.AddrPort) *wiretest.Conn {
	return wiretest.Datagrams(l, l.dialRelay(at))
}

func exchange(conn *wiretest.Conn, m []byte, want proto.Type, within time.Duration) bool {
	return conn.Send(m) == nil && conn.Receives(within, wiretest.HasType(want))
}

// bindBy sends the BIND of p with the next nonce each second until it is
// answered, at most n times, and returns how many BINDs it took; 0 without an answer.
func bindBy(conn *wiretest.Conn, p *player, n int) int {
	for i := range n {
		p.Nonce++
		bind := enginetest.SignedBind(enginetest.Credentials{Key: p.key[:], ConnectionData: p.data}, p.Nonce)
		if exchange(conn, bind, proto.TypeBindReceived, time.Second) {
			return i + 1
		}
	}
	return 0
}

func (l *lab) floodUntil(ctx context.Context, rate int, next func(n uint64) []byte) {
	s, err := NewSpoofer(l.net.Clients, RelayAddr.Addr())
	if err != nil {
		l.Error(err)
		return
	}
	defer s.Close()
	s.Flood(ctx, rate, next)
}

// TestAttackReflection verifies that a player's own host cannot make the relay
// send to a silent victim after a forged BIND and a forged CONNECT_REQUEST: at
// most three times the forged bytes arrive, and 256 kB/s besides.
func TestAttackReflection(t *testing.T) {
	const (
		ratio   = 3       // RFC 9000, section 8
		excess  = 256_000 // bytes per second in addition, with a burst of one second
		rate    = 8000    // RELAYs per second
		payload = 1000
	)
	// The relay knows a player's address only if its reverse proxies are known.
	l := newLab(t, func(c *RelayConfig) {
		c.Players, c.Flags = true, []string{"--trusted-proxies", "192.0.2.1/32"}
	})
	host, joiner, _, err := AllocateMatch(t.Context(), l.caller(firstAttacker, returnGoal), api.AllocateRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	h, j := newPlayer(host), newPlayer(joiner)
	conn := l.messages(netip.AddrPortFrom(firstAttacker, 0))
	if bindBy(conn, h, 3) == 0 {
		t.Fatal("the host is not bound")
	}
	received := l.counter(l.net.Victim, netip.Prefix{})
	victim := netip.AddrPortFrom(VictimAddr, 20_000)
	s := l.spoofer(l.net.Clients)
	forged := 0
	forge := func(packet []byte) {
		if err := s.Send(packet); err != nil {
			t.Fatal(err)
		}
		forged += len(packet) - rawOverhead
		l.waitDrained(l.net.Relay)
	}
	forge(forgedBinds(j, victim)(0))
	forge(AppendIPv4UDP(nil, victim, RelayAddr, proto.ConnectRequest{ID: j.id, ConnectionData: j.hostConnectionData}.Append(nil)))
	relay := proto.Relay{From: h.id, To: j.id, Payload: make([]byte, payload)}.Append(nil)
	sent := 0
	begin := time.Now()
	for ; time.Since(begin) < *attackDuration; time.Sleep(floodInterval) {
		for ; time.Duration(sent)*time.Second/rate < time.Since(begin); sent++ {
			_ = conn.Send(relay)
		}
	}
	l.waitDrained(l.net.Relay)
	time.Sleep(200 * time.Millisecond)
	got, took := received.Received(), int(time.Since(begin).Seconds()+1)
	t.Logf("%d bytes forged, %d RELAYs of %d bytes offered; the victim got %+v", forged, sent, len(relay), got)
	recordAttack(t, attackResult{
		attack: "reflection by a host to a silent joiner", rate: fmt.Sprintf("%d forged bytes, %d RELAYs", forged, sent),
		honest: fmt.Sprintf("%d bytes to the victim in %v", got.Bytes, *attackDuration), damage: got.Bytes > ratio*forged+excess*(took+1),
	})
}
