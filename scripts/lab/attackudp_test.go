//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
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

// TestAttackBindFirst verifies that an attacker that has bound the endpoint of a
// player before the player did cannot take it back.
func TestAttackBindFirst(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--bind-timeout", "2m"} })
	f := l.emptyFleet(l.players(1, 30))
	next := forgedBindsAndPings(l.allocateHost(l.relay.API(l.net.Clients, 0)), f.joinerAddr(0))
	in := l.metric(datagramsIn)
	if err := l.spoofer(l.net.Clients).Send(next(0)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is taken", func() bool { return l.metric(datagramsIn) > in })
	l.addMatches(f)
	l.attackOn(f, attackResult{
		attack: "forged BINDs and PINGs at an endpoint that was the attacker's", rate: perSecond(1000, "datagrams"), state: "1 allocation",
	}, func() { l.flood(1000, *attackDuration, next) })
	l.requireTraffic(f, 10*time.Second)
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

// TestReusedPort verifies that a player is bound within 3 s if its NAT gives it
// the port of another player that has just fallen silent.
func TestReusedPort(t *testing.T) {
	l := newLab(t, nil)
	backend := l.relay.API(l.net.Clients, 0)
	former, next := l.allocateHost(backend), l.allocateHost(backend)
	conn := l.messages(netip.AddrPortFrom(FirstClient, 0))
	if bindBy(conn, former, 3) == 0 {
		t.Fatal("the former owner was not bound")
	}
	if !exchange(conn, proto.Ping{ID: former.id, Number: 1}.Append(nil), proto.TypePing, returnGoal) {
		t.Fatal("the former owner got no answer")
	}
	begin := time.Now()
	binds := bindBy(conn, next, 4) // after 0, 1, 2 and 3 s
	recordAttack(t, attackResult{
		attack: "none: a NAT reuses the port of a silent player", rate: "1 BIND/s",
		honest: fmt.Sprintf("bound by BIND %d after %v", binds, time.Since(begin).Round(time.Millisecond)), damage: binds == 0,
	})
}

// TestAttackMismatch verifies that PINGs with the ids of hosts from forged
// sources do not keep hosts from coming back after their address has changed.
func TestAttackMismatch(t *testing.T) {
	const perHost, roamPeriods = 1000, 3
	l := newLab(t, nil)
	cfg := l.players(6, 30)
	cfg.Ports, cfg.RoamEvery = 2, returnGoal
	f, _ := l.fleet(cfg)
	var pings [][]byte
	for i := 0; i < len(f.players); i += 2 {
		pings = append(pings, proto.Ping{ID: f.players[i].id, Number: 1}.Append(nil))
	}
	next := l.spoofedPackets(func() []byte { return pings[l.rng.IntN(len(pings))] })
	before := f.Counts()
	l.flood(perHost*len(pings), max(*attackDuration, roamPeriods*cfg.RoamEvery), next)
	got, took := f.Counts().Since(before), f.Roams()
	f.Mark()
	testkit.Poll(2*returnGoal, func() bool { return f.Resumed(2*returnGoal) == cfg.Matches })
	t.Logf("%v; %d roams complete, p50 %v, at most %v", got, len(took), Quantile(took, 0.5), Quantile(took, 1))
	resumed := f.Resumed(2 * returnGoal)
	recordAttack(t, attackResult{
		attack: "forged PINGs with the ids of hosts that roam", rate: perSecond(perHost, "PINGs per host"), p99: Quantile(took, 0.99),
		honest: fmt.Sprintf("%d of %d roams beyond 3 s, %d of %d matches continue", got.RoamsLate, got.Roams, resumed, cfg.Matches),
		damage: got.Roams == 0 || got.RoamsLate > 0 || ended(got) || resumed < cfg.Matches,
	})
}

// TestAttackMismatchElsewhere verifies the same for a player that comes back
// from another network.
func TestAttackMismatchElsewhere(t *testing.T) {
	const rate = 1000
	l := newLab(t, nil)
	p := l.allocateHost(l.relay.API(l.net.Clients, 0))
	if bindBy(l.messages(netip.AddrPortFrom(FirstClient, 0)), p, 3) == 0 {
		t.Fatal("not bound")
	}
	ping := proto.Ping{ID: p.id, Number: 1}.Append(nil)
	next := l.spoofedPackets(func() []byte { return ping })
	l.background(func(ctx context.Context) { l.floodUntil(ctx, rate, next) })
	time.Sleep(time.Second) // The attack uses up what may be left of a budget.
	const moves = 4
	var took []time.Duration
	at := FirstClient
	for range moves {
		at = at.Next()
		conn, begin := l.messages(netip.AddrPortFrom(at, 0)), time.Now()
		for time.Since(begin) < returnLimit() && !exchange(conn, ping, proto.TypeError, 50*time.Millisecond) {
		}
		if bindBy(conn, p, 1) == 1 && time.Since(begin) < returnLimit() {
			took = append(took, time.Since(begin))
		}
	}
	recordAttack(t, attackResult{
		attack: "forged PINGs with the id of a player that changes its network", rate: perSecond(rate, "PINGs"), p99: Quantile(took, 1),
		honest: fmt.Sprintf("%d of %d times back within 3 s", len(took), moves), damage: len(took) < moves,
	})
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

// TestAttackJoin verifies that a player that connects and disconnects in a loop
// does not keep others from joining its host or other hosts.
func TestAttackJoin(t *testing.T) {
	const rate, joiners, otherHosts = 500, 8, 4
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--trusted-proxies", "192.0.2.1/32"} })
	backend := l.relay.API(l.net.Clients, 0)
	at := FirstPeer
	host := func() (api.Allocation, string) {
		a, err := backend.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 100})
		if err != nil {
			t.Fatal(err)
		}
		code, err := backend.JoinCode(t.Context(), a.AllocationID)
		if err != nil {
			t.Fatal(err)
		}
		h := NewGameClient(GameClientConfig{Transport: "udp", Namespace: l.net.Peers, Local: at, Relay: RelayAddr, Player: a, Rate: 30})
		at = at.Next()
		l.background(h.Run)
		testkit.Eventually(t, "the host is bound", h.isBound)
		return a, code
	}
	join := func(code string) api.Allocation {
		a, err := backend.Join(t.Context(), code)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	attacked, code := host()
	codes := []string{code}
	hosts := []api.Allocation{attacked}
	for range otherHosts {
		a, code := host()
		hosts, codes = append(hosts, a), append(codes, code)
	}
	attacker := newPlayer(join(code))
	conn := l.messages(netip.AddrPortFrom(firstAttacker, 0))
	if bindBy(conn, attacker, 3) == 0 {
		t.Fatal("the attacker is not bound")
	}
	connect := proto.ConnectRequest{ID: attacker.id, ConnectionData: attacker.hostConnectionData}.Append(nil)
	disconnect := proto.Disconnect{From: attacker.id, To: idOf(attacked)}.Append(nil)
	if !exchange(conn, connect, proto.TypeAccepted, returnGoal) {
		t.Fatal("the attacker's first request was not accepted")
	}
	var loops atomic.Int64
	l.background(func(ctx context.Context) {
		for begin := time.Now(); ctx.Err() == nil; time.Sleep(floodInterval) {
			for time.Since(begin) > time.Duration(loops.Load())*time.Second/rate {
				_ = conn.Send(disconnect)
				_ = conn.Send(connect)
				loops.Add(1)
			}
		}
	})
	time.Sleep(time.Second)
	began, from := time.Now(), FirstClient
	looped := loops.Load()
	var joined []*GameClient
	starts := make(map[*GameClient]time.Time)
	took := make(map[*GameClient]time.Duration)
	sample := func() bool {
		for _, j := range joined {
			if _, ok := took[j]; !ok && j.isLinked() {
				took[j] = time.Since(starts[j])
			}
		}
		return len(took) == joiners+otherHosts
	}
	for i := range joiners + otherHosts {
		h := max(0, i-joiners+1) // The first ones join the attacked host.
		j := NewGameClient(GameClientConfig{
			Transport: "udp", Namespace: l.net.Clients, Local: from, Relay: RelayAddr, Player: join(codes[h]), Peers: PeersOf(hosts[h]), Rate: 30,
		})
		from = from.Next()
		joined = append(joined, j)
		starts[j] = time.Now()
		l.background(j.Run)
		testkit.Poll(100*time.Millisecond, func() bool { sample(); return false })
	}
	testkit.Poll(2*returnLimit(), sample)
	var all []time.Duration
	for _, d := range took {
		if d <= returnLimit() {
			all = append(all, d)
		}
	}
	pace := float64(loops.Load()-looped) / time.Since(began).Seconds()
	t.Logf("times until accepted: %v", all)
	recordAttack(t, attackResult{
		attack: "a member connects and disconnects in a loop", rate: perSecond(pace, "loops"), p99: slices.Max(append(all, 0)),
		honest: fmt.Sprintf("%d of %d joins within 3 s", len(all), joiners+otherHosts), damage: len(all) < joiners+otherHosts,
	})
}

// isBound reports whether the relay has answered the client's BIND.
func (v *GameClient) isBound() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.bound
}

// isLinked reports whether the client may send to its peer.
func (v *GameClient) isLinked() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.linked
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
