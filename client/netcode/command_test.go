package netcode_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// overNet is a pair in game whose client is behind a simulated network.
func overNet(t testing.TB, cfg netcode.Config, bad link.Conditions) (b *testNetwork, sim *simulation.Link, s, c netcode.Conn) {
	t.Helper()
	b = newTestNetwork(t, cfg)
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	sim, err = simulation.New(node, simulation.Config{Seed: 4, In: bad, Out: bad})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Link, cfg.Rand = sim, newChance(1)
	d := b.driver(netcode.NewClient, cfg)
	b.clients = append(b.clients, d)
	c = b.connect(d)
	for c.State() != netcode.StateConnected {
		b.tick(1)
	}
	s = b.only()
	s.SetInGame(true)
	c.SetInGame(true)
	return b, sim, s, c
}

// TestCommandsOver4G: nearly all commands of a player on a mobile network reach the game.
func TestCommandsOver4G(t *testing.T) {
	var bad link.Conditions
	if err := bad.UnmarshalText([]byte("4g")); err != nil {
		t.Fatal(err)
	}
	bad.Jitter, bad.Duplicate, bad.Reorder = 25*ms, 2, 3
	b, _, s, c := overNet(t, netcode.Config{}, bad)
	b.step = time.Second / 60
	const sent = 1800
	delivered := map[uint32]int{}
	var last, newest uint32 // seen at all, and in an earlier Update
	for tick := uint32(1); tick <= sent+60; tick++ {
		if tick <= sent {
			if err := c.SendCommand(tick, []byte{byte(tick)}); err != nil {
				t.Fatal(err)
			}
		}
		b.tick(1)
		for command := range s.Commands() {
			delivered[command.Tick]++
			if n := delivered[command.Tick]; n > 1 || command.Data[0] != byte(command.Tick) {
				t.Fatalf("the command of tick %d came %d times, with %v", command.Tick, n, command.Data)
			}
			if command.Late != (command.Tick < newest) || !command.Late && command.Tick < last {
				t.Fatalf("tick %d after %d, of an earlier update %d: late is %v", command.Tick, last, newest, command.Late)
			}
			last = max(last, command.Tick)
		}
		newest = last
	}
	if got := len(delivered); got < sent*999/1000 {
		t.Errorf("%d of %d commands reached the game", got, sent)
	}
	st, _ := s.Stats()
	t.Logf("%d of %d commands reached the game, %d of them late, %d repetitions", len(delivered), sent, st.Late, st.Repeated)
	if st.Received != uint64(len(delivered)) || st.Repeated == 0 {
		t.Errorf("%d commands reached the game, the counters are %+v", len(delivered), st)
	}
}

// commands returns what a server read in this tick, as "tick:data" or "tick:data late".
func commands(s netcode.Conn) (all []string) {
	for command := range s.Commands() {
		text := fmt.Sprintf("%d:%s", command.Tick, command.Data)
		if command.Late {
			text += " late"
		}
		all = append(all, text)
	}
	return all
}

// TestCommandsOfATick: all commands of a tick come in order and once, the late ones marked.
func TestCommandsOfATick(t *testing.T) {
	b, s, c := pair(t, netcode.Config{}, netcode.Config{CommandsPerDatagram: 1})
	s.SetInGame(true)
	c.SetInGame(true)
	send := func(tick uint32, text string) {
		t.Helper()
		if err := c.SendCommand(tick, []byte(text)); err != nil {
			t.Fatal(err)
		}
		b.clients[0].Flush()
	}
	expect := func(want ...string) {
		t.Helper()
		b.net.Step()
		b.update()
		if got := commands(s); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	send(6, "six")
	send(9, "nine")
	send(8, "eight")
	send(8, "eight again")
	expect("6:six", "8:eight", "9:nine")
	expect()
	send(10, "ten")
	send(7, "seven")
	send(9, "nine")
	expect("7:seven late", "10:ten")
	send(200, "far ahead")
	send(201-64, "the oldest")
	send(200-64, "too old")
	send(1<<31, "very far")
	expect("137:the oldest", "200:far ahead", "2147483648:very far")
	st, _ := s.Stats()
	if st.Received != 8 || st.Late != 1 || st.Repeated != 2 || st.Dropped != 1 {
		t.Errorf("%+v", st)
	}
	s.SetInGame(false)
	s.SetInGame(true)
	send(1, "a new game")
	expect("1:a new game")
}

// TestCommandsAreRepeated: a datagram has the commands of the ticks before, as far as they fit.
func TestCommandsAreRepeated(t *testing.T) {
	b, sim, s, c := overNet(t, netcode.Config{CommandsPerDatagram: 3}, link.Conditions{})
	step := func(lost bool, sizes map[uint32]int) {
		t.Helper()
		for _, tick := range slices.Sorted(maps.Keys(sizes)) {
			if err := c.SendCommand(tick, bytes.Repeat([]byte{byte(tick)}, sizes[tick])); err != nil {
				t.Fatal(err)
			}
		}
		out := link.Conditions{}
		if lost {
			out.Loss = 100
		}
		if err := sim.SetOut(out); err != nil {
			t.Fatal(err)
		}
		b.flush()
		b.update()
	}
	expect := func(want ...uint32) {
		t.Helper()
		var got []uint32
		for command := range s.Commands() {
			got = append(got, command.Tick)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	step(true, map[uint32]int{1: 10})
	step(true, map[uint32]int{2: 10})
	step(true, map[uint32]int{3: 0})
	step(false, map[uint32]int{4: 10})
	expect(2, 3, 4)
	step(true, map[uint32]int{5: 1000})
	step(false, map[uint32]int{6: 1000}) // The two do not fit into one datagram.
	expect(6)
	step(true, map[uint32]int{7: 10})
	step(false, map[uint32]int{8: 5000}) // This one has several.
	expect(8)
	step(false, map[uint32]int{9: 10})
	expect(9)
	step(true, map[uint32]int{10: 10})
	step(false, map[uint32]int{300: 10}) // 290 ticks later
	expect(300)
	step(false, map[uint32]int{301: 10, 302: 10, 303: 10, 304: 10})
	expect(302, 303, 304) // of several in one tick as many as a datagram has
	if st, _ := c.Stats(); st.Unsent != 1 || st.Sent != 14 {
		t.Errorf("%d commands were sent and %d not", st.Sent, st.Unsent)
	}
	if st, _ := s.Stats(); st.Received != 10 || st.Late != 0 {
		t.Errorf("%+v", st)
	}
}

// TestCommandsAreBounded: a client that sends far too many costs a bounded part of an Update.
func TestCommandsAreBounded(t *testing.T) {
	b, s, c := inGame(t)
	const sent = 300
	for tick := range uint32(sent) {
		if err := c.SendCommand(tick, nil); err != nil {
			t.Fatal(err)
		}
		b.clients[0].Flush()
	}
	b.net.Step()
	b.update()
	if got := len(commands(s)); got != 256 {
		t.Errorf("%d commands in one Update", got)
	}
	if st, _ := s.Stats(); st.Received != 256 || st.Dropped == 0 {
		t.Errorf("%+v", st)
	}
}

// TestMalformedCommands: what does not parse is ignored and not an acknowledgement.
func TestMalformedCommands(t *testing.T) {
	head := append([]byte{0, 5, 0, 0, 0, 1, 0, 0, 0}, make([]byte, 8)...)
	for _, k := range []struct {
		rest string
		want []string // nil: it is ignored
	}{
		{"", nil}, {"\x00", []string{}}, {"\x00x", nil}, {"\x01\x09\x00\x00", nil},
		{"\x01\x09\x00\x00\x00", []string{"9:"}}, {"\x01\x09\x00\x00\x00ab", []string{"9:ab"}},
		{"\x02\x09\x00\x00\x00", nil}, {"\x02\x09\x00\x00\x00\x01\x00", nil},
		{"\x02\x09\x00\x00\x00\x01\x02\x00a", nil}, {"\x02\x09\x00\x00\x00\x00\x01\x00ab", nil},
		{"\x02\x09\x00\x00\x00\x04\x01\x00ab", []string{"5:a", "9:b"}},
		{"\x03\x09\x00\x00\x00\x04\x01\x00a\x01\x00\x00b", []string{"4:", "5:a", "9:b"}},
		{"\x02\x01\x00\x00\x00\x03\x01\x00ab", []string{"4294967294:a", "1:b"}},
	} {
		b := newTestNetwork(t, netcode.Config{})
		r := newRawPeer(t, b)
		r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
		b.tick(1)
		r.pass(b)
		s := b.only()
		s.SetInGame(true)
		r.say(t, b, utp.EntitiesUnreliable, append(slices.Clone(head), k.rest...))
		b.update()
		got := commands(s)
		st, _ := s.Stats()
		if !slices.Equal(got, k.want) || (st.Ignored == 1) != (k.want == nil) || s.Acks().Has(5) != (k.want != nil) {
			t.Errorf("%q: %q, want %q; %+v, %+v", k.rest, got, k.want, st.Ignored, s.Acks())
		}
	}
}

// TestSpectator: a client in game that sends no commands acknowledges snapshots all the same.
func TestSpectator(t *testing.T) {
	b, _, s, c := overNet(t, netcode.Config{}, link.Conditions{Delay: 40 * ms, Loss: 10})
	for tick := uint32(1); tick <= 200; tick++ {
		if err := s.SendSnapshot(tick, nil); err != nil {
			t.Fatal(err)
		}
		b.tick(1)
		if acks := s.Acks(); tick > 40 && tick-acks.Newest > 20 {
			t.Fatalf("tick %d: the server has %+v", tick, acks)
		}
	}
	b.tick(20)
	if s.Acks() != c.Acks() || s.Acks().Newest < 195 {
		t.Errorf("the server has %+v, the client %+v", s.Acks(), c.Acks())
	}
	st, _ := s.Stats()
	if sent, _ := c.Stats(); st.Received != 0 || sent.Sent != 0 || st.RTT < 80*ms || st.RTT > 160*ms {
		t.Errorf("%d commands, a round trip of %v", st.Received, st.RTT)
	}
	before, _ := c.Stats()
	for tick := uint32(1); tick <= 100; tick++ {
		if err := c.SendCommand(tick, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.SendSnapshot(1000+tick, nil); err != nil {
			t.Fatal(err)
		}
		b.tick(1)
	}
	if after, _ := c.Stats(); after.PacketsSent-before.PacketsSent > 101 {
		t.Errorf("100 commands took %d datagrams", after.PacketsSent-before.PacketsSent)
	}
}
