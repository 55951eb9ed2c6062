//go:build lab && linux

package lab

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
	pion "github.com/pion/dtls/v3"
)

const (
	// joinWithin is the goal of handshake and BIND of an honest player under attack.
	joinWithin       = 3 * time.Second
	joinInterval     = 50 * time.Millisecond
	allocationsGauge = "ferry_allocations"
)

// dial connects the player of an allocation from an address of the clients. A port of
// zero means any.
func (l *lab) dial(ctx context.Context, transport string, from netip.AddrPort, a api.Allocation) (*GameClient, clientConn, error) {
	v := NewGameClient(GameClientConfig{
		Transport: transport, Namespace: l.net.Clients, Local: from.Addr(), Relay: RelayAddr, Player: a,
	})
	v.setLocalAddr(from)
	conn, err := v.dial(ctx)
	return v, conn, err
}

func (l *lab) join(ctx context.Context, transport string, from netip.AddrPort, a api.Allocation) (*wiretest.Conn, error) {
	return l.bind(ctx, transport, from, a, proto.TypeBindReceived)
}

// bind connects a player and repeats its BIND until it gets an answer of a type, until ctx
// is done.
func (l *lab) bind(
	ctx context.Context, transport string, from netip.AddrPort, a api.Allocation, answer proto.Type,
) (*wiretest.Conn, error) {
	v, dialed, err := l.dial(ctx, transport, from, a)
	if err != nil {
		return nil, err
	}
	conn := wiretest.New(l, dialed.send, dialed.receive, func() error { dialed.close(); return nil })
	for {
		v.sendRequest(dialed)
		again, cancel := context.WithTimeout(ctx, gameClientRetry)
		err := conn.Await(again, wiretest.HasType(answer))
		cancel()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			_ = conn.Close()
			return nil, err
		}
	}
}

func (l *lab) allocate(n int) (all []api.Allocation) {
	l.Helper()
	c := l.relay.API(l.net.Clients, 0)
	for range n {
		a, err := c.Allocate(l.Context(), api.AllocateRequest{MaxConnections: 1})
		if err != nil {
			l.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

func (l *lab) endAllocations(all []api.Allocation) {
	l.Helper()
	for _, a := range all {
		ctx, cancel := context.WithTimeout(l.Context(), dialTimeout)
		conn, err := l.join(ctx, "udp", netip.AddrPortFrom(FirstClient, 0), a)
		if err == nil {
			err = conn.Send(proto.Close{ID: idOf(a)}.Append(nil))
			_ = conn.Close()
		}
		cancel()
		if err != nil {
			l.Fatal(err)
		}
	}
	testkit.Eventually(l.T, "the allocations end", func() bool { return l.metric(allocationsGauge) == 0 })
}

// joins counts honest players that joined under attack, or got another answer.
type joins struct {
	what        string // "": joins
	tried, done int
	took        []time.Duration // sorted
}

func (j joins) String() string {
	return fmt.Sprintf("%d of %d %s within %v", j.done, j.tried, cmp.Or(j.what, "joins"), joinWithin)
}

// result returns a line of the table: every join that fails is damage.
func (j joins) result(attack, rate, state string) attackResult {
	r := attackResult{attack: attack, rate: rate, honest: j.String(), state: state, damage: j.done < j.tried}
	if len(j.took) > 0 {
		r.p99 = Quantile(j.took, 0.99)
	}
	return r
}

// honestJoins lets one new player join from each address, one started after another.
func (l *lab) honestJoins(transport string, from ...netip.AddrPort) joins {
	l.Helper()
	return l.binds(transport, l.allocate(len(from)), proto.TypeBindReceived, from...)
}

// binds lets one player bind from each address, one started after another, until its BIND
// gets an answer of a type.
func (l *lab) binds(transport string, players []api.Allocation, answer proto.Type, from ...netip.AddrPort) joins {
	l.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	j := joins{tried: len(from)}
	for i, a := range players {
		all.Go(func() {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(l.Context(), joinWithin)
			defer cancel()
			conn, err := l.bind(ctx, transport, from[i], a, answer)
			if err != nil {
				return
			}
			defer conn.Close()
			mu.Lock()
			defer mu.Unlock()
			j.done, j.took = j.done+1, append(j.took, time.Since(begin))
		})
		time.Sleep(joinInterval)
	}
	all.Wait()
	slices.Sort(j.took)
	return j
}

func playersFrom(first netip.Addr, n int) (all []netip.AddrPort) {
	for range n {
		all, first = append(all, netip.AddrPortFrom(first, 0)), first.Next()
	}
	return all
}

const (
	fewSessions = 32 // max_dtls_sessions and max_websockets of a relay whose table is filled
	// perIdentity is the number of DTLS sessions that an allocation may have.
	perIdentity = 4
)

// fillSessions makes DTLS handshakes from one address with the keys of allocations,
// twice as many as there is room for, without BIND. It returns how many succeeded.
func (l *lab) fillSessions(all []api.Allocation) (established int) {
	l.Helper()
	var mu sync.Mutex
	var done sync.WaitGroup
	for _, a := range all {
		for range perIdentity {
			done.Go(func() {
				ctx, cancel := context.WithTimeout(l.Context(), joinWithin)
				defer cancel()
				_, conn, err := l.dial(ctx, "dtls", netip.AddrPortFrom(firstAttacker, 0), a)
				if err != nil {
					return
				}
				conn.close() // The relay does not learn of it.
				mu.Lock()
				established++
				mu.Unlock()
			})
		}
	}
	done.Wait()
	return established
}

type heldPlayers struct {
	players []api.Allocation
	conns   []*wiretest.Conn
}

func (l *lab) holdPlayers(from ...netip.AddrPort) (h heldPlayers) {
	l.Helper()
	h.players = l.allocate(len(from))
	for i, a := range h.players {
		ctx, cancel := context.WithTimeout(l.Context(), dialTimeout)
		conn, err := l.join(ctx, "dtls", from[i], a)
		cancel()
		if err != nil {
			l.Fatal(err)
		}
		h.conns = append(h.conns, conn)
	}
	return h
}

// ping sends a PING of each player, and returns those whose echo came in time as joins.
func (h heldPlayers) ping() (j joins) {
	var mu sync.Mutex
	var all sync.WaitGroup
	j.what, j.tried = "echoes", len(h.conns)
	for i, conn := range h.conns {
		all.Go(func() {
			begin, ping := time.Now(), proto.Ping{ID: idOf(h.players[i])}.Append(nil)
			if conn.Send(ping) == nil && conn.Receives(joinWithin, wiretest.Equals(ping)) {
				mu.Lock()
				defer mu.Unlock()
				j.done, j.took = j.done+1, append(j.took, time.Since(begin))
			}
		})
	}
	all.Wait()
	slices.Sort(j.took)
	return j
}

// TestAttackDTLSDeadKeys verifies that an attacker with the keys of very many allocations
// that have ended takes a sixteenth of the table of DTLS sessions: it keeps no player out
// of a table that is otherwise full, ends and delays no session of theirs, and keeps the
// clients of other ended allocations from their ERROR 4 neither. The same after a restart.
func TestAttackDTLSDeadKeys(t *testing.T) {
	const late, newcomers = 2, 4
	const most, share = 128, 128 / 16 // max_dtls_sessions, and what unbindable ones take of it
	at := playersFrom(FirstClient, most+late)
	seats, others := at[:most-share-newcomers], at[most:]
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--max-dtls-sessions", fmt.Sprint(most)} })
	dead := l.allocate(2*fewSessions/perIdentity + 2*late)
	l.endAllocations(dead)
	for n, when := range []string{"", " after a restart"} {
		if when != "" {
			l.relay.Kill()
			l.start()
		}
		held := l.holdPlayers(seats...)
		handshakes := make(chan int)
		ctx, stop := context.WithCancel(t.Context())
		var attacked sync.WaitGroup
		attacked.Go(func() {
			all := 0
			for ctx.Err() == nil {
				all += l.fillSessions(dead[2*late:])
			}
			handshakes <- all
		})
		testkit.Eventually(t, "sessions of the attacker", func() bool {
			return l.metric(`ferry_dtls_events_total{event="unbindable"}`) >= 2*fewSessions
		})
		refused := l.binds("dtls", dead[n*late:(n+1)*late], proto.TypeError, others...)
		refused.what = "ERROR 4"
		j := l.honestJoins("dtls", at[len(seats):len(seats)+newcomers]...)
		pings := held.ping()
		sessions := l.metric("ferry_dtls_sessions")
		stop()
		rate := fmt.Sprintf("%d handshakes", <-handshakes)
		attacked.Wait()
		state := fmt.Sprintf("%.0f sessions", sessions)
		what := "DTLS sessions with keys of dead allocations" + when
		recordAttack(t, j.result(what, rate, state))
		recordAttack(t, pings.result(what+": PINGs of players", rate, state))
		recordAttack(t, refused.result(what+": ERROR 4 of others", rate, state))
		for _, conn := range held.conns {
			_ = conn.Close()
		}
	}
}

// TestAttackDTLSUnbound verifies that sessions without a BIND give way to players when
// the table of DTLS sessions is full.
func TestAttackDTLSUnbound(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) {
		c.Flags = []string{"--max-dtls-sessions", fmt.Sprint(fewSessions), "--bind-timeout", "1m"}
	})
	n := l.fillSessions(l.allocate(2 * fewSessions / perIdentity))
	if n < fewSessions {
		t.Errorf("the attacker got %d sessions: this run decides nothing", n)
	}
	j := l.honestJoins("dtls", playersFrom(FirstClient, 4)...)
	recordAttack(t, j.result("DTLS sessions without BIND", fmt.Sprintf("%d handshakes, %d done", 2*fewSessions, n),
		fmt.Sprintf("%.0f sessions", l.metric("ferry_dtls_sessions"))))
}

// keyExchange returns a forged flight that ends the handshake of a ClientHello: a
// ClientKeyExchange for an unknown allocation, and a record that no key decrypts.
func (l *lab) keyExchange(n byte) []byte {
	identity, finished := make([]byte, proto.IDLen), make([]byte, 48)
	fill(l.rng, identity)
	fill(l.rng, finished)
	const clientKeyExchange = 16
	size := byte(2 + len(identity))
	b := plainRecord(n, append([]byte{clientKeyExchange, 0, 0, size, 0, 1, 0, 0, 0, 0, 0, size, 0, byte(len(identity))}, identity...))
	b = append(b, dtlsHandshake, dtlsVersion>>8, dtlsVersion&0xFF, 0, 1, 0, 0, 0, 0, 0, n)
	b = binary.BigEndian.AppendUint16(b, uint16(len(finished)))
	return append(b, finished...)
}

// TestAttackDTLSForgedFinished verifies that five forged datagrams do not keep their
// source from a handshake of its own.
func TestAttackDTLSForgedFinished(t *testing.T) {
	l := newLab(t, nil)
	s := l.spoofer(l.net.Clients)
	var victims []netip.AddrPort
	for _, at := range playersFrom(FirstClient, 4) {
		at = netip.AddrPortFrom(at.Addr(), 40_000)
		victims = append(victims, at)
		forged := [][]byte{ClientHello(HelloRandom(l.rng), nil)}
		for n := range byte(4) {
			forged = append(forged, l.keyExchange(n+1))
		}
		for _, m := range forged {
			if err := s.Send(AppendIPv4UDP(nil, at, RelayAddr, m)); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.waitDrained(l.net.Relay)
	j := l.honestJoins("dtls", victims...)
	recordAttack(t, j.result("forged DTLS hello and Finished of the victim", "5 datagrams for each victim", ""))
}

// halfOpener is a port whose handshake has a valid cookie and is never finished.
type halfOpener struct {
	conn  *net.UDPConn
	hello []byte // with the cookie
}

// halfOpeners opens ports of one address and gets a cookie for each.
func (l *lab) halfOpeners(at netip.Addr, n int) (all []halfOpener) {
	l.Helper()
	buf := make([]byte, 2048)
	for range n {
		o := halfOpener{conn: l.dialRelay(netip.AddrPortFrom(at, 0))}
		for range 50 { // The relay may answer the first hello without a cookie.
			random := HelloRandom(l.rng)
			_, _ = o.conn.Write(ClientHello(random, nil))
			_ = o.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			m, err := o.conn.Read(buf)
			if err != nil {
				continue
			}
			if cookie := ParseCookie(buf[:m]); cookie != nil {
				o.hello = ClientHello(random, cookie)
				break
			}
		}
		if o.hello == nil {
			l.Fatal("no cookie")
		}
		all = append(all, o)
	}
	return all
}

// TestAttackDTLSNeighbour verifies that a neighbour that starts 11 handshakes a second
// with valid cookies and finishes none does not keep others of its address out.
func TestAttackDTLSNeighbour(t *testing.T) {
	const ports, perSecond, players = 128, 11, 18 // more ports than a prefix may have unfinished handshakes
	l := newLab(t, nil)
	open := l.halfOpeners(FirstClient, ports)
	start := func(o halfOpener) { _, _ = o.conn.Write(o.hello) } // A failed write counts as loss.
	for _, o := range open {
		start(o)
	}
	l.background(func(ctx context.Context) {
		for n := 0; ctx.Err() == nil; n++ {
			pause(ctx, time.Second/perSecond)
			start(open[n%ports])
		}
	})
	l.waitDrained(l.net.Relay)
	j := l.honestJoins("dtls", slices.Repeat(playersFrom(FirstClient, 1), players)...)
	recordAttack(t, j.result("unfinished DTLS handshakes of a neighbour", "11 datagrams/s with cookies",
		fmt.Sprintf("%.0f half open", l.metric("ferry_dtls_half_open"))))
}

// repeatedFinished is the socket of a DTLS client that does not get the relay's
// Finished, and that repeats nothing but its own.
type repeatedFinished struct {
	net.PacketConn

	mu             sync.Mutex // guards what follows
	sent, received int        // bytes, of repetitions and their answers
	repeats        int        // its Finished, repeated
	begun          bool       // the first Finished was sent
	answered       bool       // and answered
}

const (
	recordHeaderLen = 13
	epochAt         = 3 // in the header of a record
)

// WriteTo sends all of a datagram until the first Finished, and then only this.
func (c *repeatedFinished) WriteTo(b []byte, to net.Addr) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	finished := []byte(nil)
	for rest := b; len(rest) >= recordHeaderLen; {
		n := min(len(rest), recordHeaderLen+int(binary.BigEndian.Uint16(rest[recordHeaderLen-2:])))
		if rest[0] == dtlsHandshake && binary.BigEndian.Uint16(rest[epochAt:]) > 0 {
			finished = rest[:n]
		}
		rest = rest[n:]
	}
	switch {
	case !c.begun:
		c.begun = finished != nil
		return c.PacketConn.WriteTo(b, to)
	case finished == nil:
		return len(b), nil
	}
	c.repeats++
	c.sent += len(finished)
	if _, err := c.PacketConn.WriteTo(finished, to); err != nil {
		return 0, err
	}
	return len(b), nil
}

// ReadFrom loses all datagrams after the first Finished.
func (c *repeatedFinished) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(b)
		c.mu.Lock()
		begun := c.begun
		if err == nil && begun {
			if c.answered {
				c.received += n
			}
			c.answered = true
		}
		c.mu.Unlock()
		if err != nil || !begun {
			return n, from, err
		}
	}
}

// TestAttackDTLSRepeatedFinished: a repeated Finished earns no more bytes than it has.
func TestAttackDTLSRepeatedFinished(t *testing.T) {
	l := newLab(t, nil)
	a := l.allocate(1)[0]
	socket, err := NewGameClient(GameClientConfig{Namespace: l.net.Clients, Local: FirstClient}).socket()
	if err != nil {
		t.Fatal(err)
	}
	c := &repeatedFinished{PacketConn: socket}
	conn, err := wiretest.DTLSClient(c, net.UDPAddrFromAddrPort(RelayAddr), a.AllocationIDBytes, a.Key,
		pion.WithFlightInterval(20*time.Millisecond), pion.WithDisableRetransmitBackoff(true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { socket.Close(); conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := conn.HandshakeContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error("the handshake must not end: ", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.repeats < 10 {
		t.Errorf("%d repetitions: this run decides nothing", c.repeats)
	}
	recordAttack(t, attackResult{
		attack: "repeated DTLS Finished", rate: fmt.Sprintf("%d times, %d bytes", c.repeats, c.sent),
		honest: fmt.Sprintf("answered with %d bytes", c.received), damage: c.received > c.sent,
	})
}

// TestAttackDTLSHelloReflection: answers to forged ClientHellos are limited by address.
func TestAttackDTLSHelloReflection(t *testing.T) {
	const rate, atOnce, perSecond = 100_000, 2_500, 1_200 // of hellos, and the limit of answers
	l := newLab(t, nil)
	received := l.counter(l.net.Clients, AttackerReplyRange())
	packets := make([][]byte, 4096)
	for i := range packets {
		packets[i] = AppendIPv4UDP(nil, netip.AddrPortFrom(firstAttacker, uint16(1024+i)), RelayAddr, ClientHello(HelloRandom(l.rng), nil))
	}
	begin := time.Now()
	o := l.flood(rate, 2*time.Second, func(n uint64) []byte { return packets[n%uint64(len(packets))] })
	l.waitDrained(l.net.Relay)
	limit := atOnce + int(perSecond*time.Since(begin).Seconds())
	if o.Sent <= uint64(limit) {
		t.Errorf("%d hellos, limit %d: this run decides nothing", o.Sent, limit)
	}
	got := received.Received().Datagrams
	recordAttack(t, attackResult{
		attack: "forged DTLS hellos of one address", rate: perSecondOf(o), damage: got > limit,
		honest: fmt.Sprintf("%d answers to it, limit %d", got, limit),
	})
}

// TestAttackDTLSHelloFlood verifies that players join during a flood of forged
// ClientHellos from many addresses.
func TestAttackDTLSHelloFlood(t *testing.T) {
	const players = 16
	rate := 10_000 // A machine that other tests share too does not serve 100,000.
	if *long {
		rate = 100_000
	}
	l := newLab(t, nil)
	next := l.spoofedPackets(func() []byte { return ClientHello(HelloRandom(l.rng), nil) })
	s := l.spoofer(l.net.Clients)
	flooded := make(chan FloodResult, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { flooded <- s.Flood(ctx, rate, next) }()
	j := l.honestJoins("dtls", playersFrom(FirstClient, players)...)
	cancel()
	o := <-flooded
	r := j.result("forged DTLS hellos of many addresses", perSecondOf(o), fmt.Sprintf("%.0f half open", l.metric("ferry_dtls_half_open")))
	r.slow = *long && o.Slow()
	recordAttack(t, r)
}

func perSecondOf(o FloodResult) string { return fmt.Sprintf("%.0f datagrams/s", o.PerSecond()) }
