package netcode_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/testkit/transcript"
)

func inGame(t testing.TB) (b *testNetwork, s, c netcode.Conn) {
	t.Helper()
	b, s, c = pair(t, netcode.Config{}, netcode.Config{})
	s.SetInGame(true)
	c.SetInGame(true)
	return b, s, c
}

func TestInGame(t *testing.T) {
	b, s, c := pair(t, netcode.Config{}, netcode.Config{})
	no := netcode.ErrNotAllowed
	if c.SendCommand(1, nil) != no || s.SendSnapshot(1, nil) != no {
		t.Error("something passes before the game")
	}
	if s.SendCommand(1, nil) != no || c.SendSnapshot(1, nil) != no {
		t.Error("something passes in the wrong direction")
	}
	c.SetInGame(true) // on one side only
	if err := c.SendCommand(1, []byte("run")); err != nil {
		t.Fatal(err)
	}
	b.tick(2)
	for range s.Commands() {
		t.Error("a command arrived on a side that is not in game")
	}
	if st, _ := s.Stats(); st.Ignored != 1 {
		t.Errorf("%+v", st)
	}
	s.SetInGame(true)
	for i := range uint32(3) {
		if err := s.SendSnapshot(10+i, nil); err != nil {
			t.Fatal(err)
		}
		b.tick(2)
	}
	if a := c.Acks(); a.Newest != 12 || a.Mask() != 7 {
		t.Errorf("%+v", a)
	}
	c.SetInGame(false)
	if a := c.Acks(); a.Mask() != 0 || c.InGame() {
		t.Errorf("after leaving: %+v", a)
	}
}

// TestReplacedSnapshotIsNotAcked, and gaps move the mask.
func TestReplacedSnapshotIsNotAcked(t *testing.T) {
	b, s, c := inGame(t)
	send := func(tick uint32) {
		t.Helper()
		if err := s.SendSnapshot(tick, nil); err != nil {
			t.Fatal(err)
		}
		b.server.Flush()
	}
	send(1)
	send(2)
	send(4)
	b.flush()
	b.update()
	if a := c.Acks(); a.Newest != 4 || a.Mask() != 1 || a.Has(2) || !a.Has(4) {
		t.Errorf("%+v", a)
	}
	for _, k := range []struct{ gap, mask uint32 }{{1, 3}, {31, 1<<31 | 1<<31>>0 | 1}, {32, 1}, {100, 1}} {
		before := c.Acks()
		send(before.Newest + k.gap)
		b.flush()
		b.update()
		after := c.Acks()
		want := uint32(1)
		if k.gap < 32 {
			want |= before.Mask() << k.gap
		}
		if after.Newest != before.Newest+k.gap || after.Mask() != want {
			t.Errorf("gap %d: %+v, then %+v", k.gap, before, after)
		}
		if k.gap < 32 != after.Has(before.Newest) {
			t.Errorf("gap %d: has the one before: %v", k.gap, after.Has(before.Newest))
		}
	}
	if err := c.SendCommand(1, nil); err != nil {
		t.Fatal(err)
	}
	b.flush()
	b.update()
	if s.Acks() != c.Acks() {
		t.Errorf("the server has %+v, the client %+v", s.Acks(), c.Acks())
	}
}

func TestLargeSnapshots(t *testing.T) {
	b, s, c := inGame(t)
	for i, n := range []int{0, 1, 1390 - 18, 1390 - 17, 5000, 16 << 10} {
		want := bytes.Repeat([]byte{byte(i + 1)}, n)
		if err := s.SendSnapshot(uint32(i), want); err != nil {
			t.Fatal(n, err)
		}
		b.flush()
		b.update()
		tick, got, ok := c.Snapshot()
		if !ok || tick != uint32(i) || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: tick %d, %d bytes, %v", n, tick, len(got), ok)
		}
	}
	if err := s.SendSnapshot(9, make([]byte, 16<<10+1)); err != netcode.ErrTooLarge {
		t.Errorf("one byte too many: %v", err)
	}
}

// TestMaxSnapshotLen: the setting is exact on the side that sends. One that receives less drops
// what does not fit into one packet.
func TestMaxSnapshotLen(t *testing.T) {
	for _, k := range []struct{ server, client, sent, received int }{
		{100, 0, 100, 100}, {40_000, 40_000, 40_000, 40_000}, {40_000, 0, 40_000, 0},
	} {
		limit := func(n int) netcode.Config { return netcode.Config{Limits: netcode.Limits{MaxSnapshotLen: n}} }
		b, s, c := pair(t, limit(k.server), limit(k.client))
		s.SetInGame(true)
		c.SetInGame(true)
		if err := s.SendSnapshot(1, make([]byte, k.sent+1)); err != netcode.ErrTooLarge {
			t.Errorf("%+v: one byte too many: %v", k, err)
		}
		if err := s.SendSnapshot(1, make([]byte, k.sent)); err != nil {
			t.Errorf("%+v: %v", k, err)
		}
		b.flush()
		b.update()
		if _, got, _ := c.Snapshot(); len(got) != k.received {
			t.Errorf("%+v: %d bytes arrived", k, len(got))
		}
	}
}

// TestMaxMessageSize: no datagram is larger.
func TestMaxMessageSize(t *testing.T) {
	_, s, c := pair(t, netcode.Config{}, netcode.Config{Limits: netcode.Limits{MaxMessageSize: 500}})
	for _, k := range []struct {
		conn netcode.Conn
		most int
	}{{s, 1389}, {c, 489}} {
		if err := k.conn.SendMessage(make([]byte, k.most+1)); err != netcode.ErrTooLarge {
			t.Errorf("a message of %d bytes: %v", k.most+1, err)
		}
		if err := k.conn.SendMessage(make([]byte, k.most)); err != nil {
			t.Errorf("a message of %d bytes: %v", k.most, err)
		}
	}
}

// TestRoundTrip: what streams measure, over a network with a known delay.
func TestRoundTrip(t *testing.T) {
	b := newTestNetwork(t, netcode.Config{})
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	slow := link.Conditions{Delay: 100 * ms}
	sim, err := simulation.New(node, simulation.Config{In: slow, Out: slow})
	if err != nil {
		t.Fatal(err)
	}
	d := b.driver(netcode.NewClient, netcode.Config{Link: sim, Rand: newChance(1)})
	b.clients = append(b.clients, d)
	c := b.connect(d)
	b.tick(60)
	s := b.only()
	s.SetInGame(true)
	c.SetInGame(true)
	for i := range uint32(200) {
		if c.SendCommand(i+50, nil) != nil || s.SendSnapshot(i+100, nil) != nil {
			t.Fatal("not in game")
		}
		b.tick(1)
	}
	for _, who := range []netcode.Conn{s, c} {
		st, ok := who.Stats()
		if !ok || st.RTT < 200*ms || st.RTT > 260*ms || st.RTTVariation > 20*ms {
			t.Errorf("RTT %v ± %v", st.RTT, st.RTTVariation)
		}
	}
	if st, _ := c.Stats(); st.CommandAge < 50 || st.CommandAge > 70 || st.Lost != 0 {
		t.Errorf("%+v", st)
	}
}

func newInGameNetwork(t testing.TB, n int) *testNetwork {
	t.Helper()
	b := newTestNetwork(t, netcode.Config{})
	for range n {
		b.join(netcode.Config{})
	}
	b.tick(5)
	for _, d := range append([]*netcode.Driver{b.server}, b.clients...) {
		for c := range d.Conns() {
			if c.State() != netcode.StateConnected {
				t.Fatal(c.State())
			}
			c.SetInGame(true)
		}
	}
	return b
}

// play makes one tick of a game: a command of each client and a snapshot for
// each. It returns how many arrived.
func (b *testNetwork) play(tick uint32, payload []byte) (commands, snapshots int) {
	b.now = b.now.Add(b.step)
	_ = b.server.Update(b.now)
	for c := range b.server.Conns() {
		for range c.Commands() {
			commands++
		}
		_ = c.SendSnapshot(tick, payload)
	}
	b.server.Flush()
	for _, d := range b.clients {
		_ = d.Update(b.now)
		for c := range d.Conns() {
			if _, _, ok := c.Snapshot(); ok {
				snapshots++
			}
			_ = c.SendCommand(tick, payload[:40])
		}
		d.Flush()
	}
	b.net.Step()
	return commands, snapshots
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	const peers = 100
	b := newInGameNetwork(t, peers)
	payload := make([]byte, 600)
	tick, commands, snapshots := uint32(0), 0, 0
	turn := func() {
		tick++
		up, down := b.play(tick, payload)
		commands, snapshots = commands+up, snapshots+down
	}
	for range 100 {
		turn() // until every buffer is there
	}
	commands, snapshots = 0, 0
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations per tick", n)
	}
	if commands != 101*peers || snapshots != 101*peers {
		t.Errorf("%d commands and %d snapshots arrived", commands, snapshots)
	}
}

// runTranscript plays a whole match over bad networks and returns a hash of all
// that was sent and received, and when.
func runTranscript(t *testing.T, seed uint64) string {
	t.Helper()
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, RequireApproval: true})
	var bad link.Conditions
	if err := bad.UnmarshalText([]byte("4g")); err != nil {
		t.Fatal(err)
	}
	bad.Loss, bad.Duplicate, bad.Corrupt = 5, 5, 2
	var taps []*transcript.Tap
	for i := range 4 {
		node, err := b.net.Open(address.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		sim, err := simulation.New(node, simulation.Config{Seed: seed + uint64(i), In: bad, Out: bad})
		if err != nil {
			t.Fatal(err)
		}
		tap := transcript.NewTap(sim)
		taps = append(taps, tap)
		b.clients = append(b.clients, b.driver(netcode.NewClient, netcode.Config{
			RPCs: rpc.reg, Link: tap, Rand: newChance(byte(i + 1)),
		}))
	}
	payload := make([]byte, 900)
	for i := range uint32(400) {
		for _, d := range b.clients {
			if i%97 == 0 {
				_, _ = d.Connect(b.node.Local())
			}
			for c := range d.Conns() {
				c.SetInGame(true)
				_ = c.SendRPC(rpc.approve.New([]byte("me")))
				if i == 300 {
					c.Disconnect(netcode.ReasonConnectionClose, "enough")
				}
			}
		}
		for c := range b.server.Conns() {
			c.SetInGame(true)
			for range c.RPCs() {
				_ = c.Approve()
				_ = c.SendRPC(rpc.say.New(payload))
			}
		}
		b.play(i, payload)
	}
	sum := ""
	for _, tap := range taps {
		sum += fmt.Sprintf("%x %d\n", tap.Sum(), tap.Len())
	}
	return sum
}

func TestSameSeedSameTranscript(t *testing.T) {
	first, again, other := runTranscript(t, 1), runTranscript(t, 1), runTranscript(t, 2)
	if first != again {
		t.Errorf("the same seed gives two transcripts:\n%s%s", first, again)
	}
	if first == other {
		t.Error("two seeds give the same transcript")
	}
}
