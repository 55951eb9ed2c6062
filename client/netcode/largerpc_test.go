package netcode_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/utp"
)

// rpcRoom is what one packet of the in-memory network has for RPCs: 1400 bytes less the
// headers of the transport, of the pipeline and of the RPC packet.
const rpcRoom = 1400 - 10 - 12 - 5

// noise returns bytes in which no part is like another.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// receive makes ticks until a connection has received a number of RPCs.
func (b *testNetwork) receive(c netcode.Conn, call netcode.RPCType[[]byte], n int) (all []string) {
	b.t.Helper()
	for end := b.ticks + 2000; len(all) < n && b.ticks < end; {
		b.update()
		all = append(all, read(c, call)...)
		b.flush()
	}
	return all
}

// TestLargeRPCSizes: each size arrives, in as few packets as possible.
func TestLargeRPCSizes(t *testing.T) {
	for _, relaxed := range []bool{false, true} {
		b, rpc, s, c := rpcPair(t, relaxed)
		one, head, part := rpcRoom-4, 6, rpcRoom-4
		if relaxed {
			one, head = one-8, head+8
		}
		if got := b.server.MaxRPC(); got != one {
			t.Fatalf("MaxRPC is %d, want %d", got, one)
		}
		for _, k := range []struct{ size, packets int }{
			{one - 1, 1}, {one, 1}, {one + 1, 2},
			{2*part - head, 2}, {2*part - head + 1, 3}, {5*part - head, 5}, {31 * part, 32},
			{64<<10 - 1, 0}, {64 << 10, 0}, // above the window
		} {
			sent := noise(k.size)
			before, _ := s.Stats()
			if err := s.SendRPC(rpc.say.New(sent)); err != nil {
				t.Fatalf("%d bytes: %v", k.size, err)
			}
			b.flush()
			after, _ := s.Stats()
			if n := int(after.PacketsSent - before.PacketsSent); k.packets != 0 && n != k.packets {
				t.Errorf("relaxed %v, %d bytes: %d packets, want %d", relaxed, k.size, n, k.packets)
			}
			if got := b.receive(c, rpc.say, 1); len(got) != 1 || got[0] != string(sent) {
				t.Errorf("relaxed %v, %d bytes: %d RPCs arrived, or other bytes", relaxed, k.size, len(got))
			}
			b.tick(3)
		}
		if err := s.SendRPC(rpc.say.New(make([]byte, 64<<10+1))); err != netcode.ErrTooLarge {
			t.Errorf("one byte too many: %v", err)
		}
		b.tick(5)
		if len(b.log) > 0 {
			t.Errorf("events %q", b.log)
		}
	}
}

// TestLargestRPC: an RPC of the limit, and a limit below one packet, which the RPCs of one
// packet do not know.
func TestLargestRPC(t *testing.T) {
	rpc := newCalls(t)
	cfg := netcode.Config{RPCs: rpc.reg, Limits: netcode.Limits{MaxRPCLen: 1 << 20, MaxRPCQueue: 2 << 20}}
	b, s, c := pair(t, cfg, cfg)
	sent := noise(1 << 20)
	if err := c.SendRPC(rpc.say.New(sent)); err != nil {
		t.Fatal(err)
	}
	if got := b.receive(s, rpc.say, 1); len(got) != 1 || got[0] != string(sent) {
		t.Errorf("%d RPCs arrived, or other bytes", len(got))
	}
	if err := c.SendRPC(rpc.say.New(make([]byte, 1<<20+1))); err != netcode.ErrTooLarge {
		t.Errorf("one byte too many: %v", err)
	}

	rpc = newCalls(t)
	cfg = netcode.Config{RPCs: rpc.reg, Limits: netcode.Limits{MaxRPCLen: 1}}
	b, s, c = pair(t, cfg, cfg)
	if err := c.SendRPC(rpc.say.New(make([]byte, rpcRoom-4))); err != nil {
		t.Error(err)
	}
	if err := c.SendRPC(rpc.say.New(make([]byte, rpcRoom-3))); err != netcode.ErrTooLarge {
		t.Errorf("above one packet: %v", err)
	}
	if got := b.receive(s, rpc.say, 1); len(got) != 1 {
		t.Error("the RPC of one packet was lost")
	}
}

// TestRPCsOnTheWire: an RPC of one packet is as ever, and a larger one has parts.
func TestRPCsOnTheWire(t *testing.T) {
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg})
	r := connectRawPeer(t, b)
	small, large := noise(rpcRoom-4), noise(2*rpcRoom)
	for _, v := range [][]byte{small, large} {
		if err := b.only().SendRPC(rpc.say.New(v)); err != nil {
			t.Fatal(err)
		}
	}
	r.closeText() // Takes the events until now.
	b.flush()
	r.pass(b)
	say := uint16(0) // The index of say: its hash is below that of approve.
	first := rpcRoom - 4 - 6
	next := first + rpcRoom - 4
	body := append([]byte{byte(len(large)), byte(len(large) >> 8), 0, 0, byte(say), 0}, large[:first]...)
	want := [][]byte{
		utp.RPC{Index: say, Bits: uint16(8 * len(small)), Payload: small}.Append(nil),
		system(0xFFFA, body...).Append(nil),
		system(0xFFF9, large[first:next]...).Append(nil),
		system(0xFFF9, large[next:]...).Append(nil),
	}
	i := 0
	for ev, ok := r.NextEvent(); ok; ev, ok = r.NextEvent() {
		if ev.Kind != utp.EventData {
			continue
		}
		if i == len(want) || !bytes.Equal(ev.Data[5:], want[i]) {
			t.Fatalf("packet %d has %d bytes: % x", i, len(ev.Data), ev.Data[:min(24, len(ev.Data))])
		}
		i++
	}
	if i != len(want) {
		t.Errorf("%d packets", i)
	}
}

// badPair is a pair whose client has a bad network: 30 % loss in each direction, and
// duplicates and reordering.
func badPair(t *testing.T, cfg netcode.Config) (b *testNetwork, s, c netcode.Conn) {
	t.Helper()
	b = newTestNetwork(t, cfg)
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	bad := link.Conditions{Loss: 30, Duplicate: 20, Reorder: 20, Delay: 30 * ms, Jitter: 25 * ms}
	sim, err := simulation.New(node, simulation.Config{Seed: 7, In: bad, Out: bad})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Link, cfg.Rand = sim, newChance(1)
	d := b.driver(netcode.NewClient, cfg)
	b.clients = append(b.clients, d)
	c = b.connect(d)
	for c.State() != netcode.StateConnected && b.ticks < 500 {
		b.tick(1)
	}
	return b, b.only(), c
}

// TestLargeRPCsOverBadNetwork: both sides send small and large RPCs at once, and all arrive
// once and in order.
func TestLargeRPCsOverBadNetwork(t *testing.T) {
	rpc := newCalls(t)
	b, s, c := badPair(t, netcode.Config{RPCs: rpc.reg})
	sides := []netcode.Conn{s, c}
	var sent, got [2][]string
	for i, size := range []int{10, 40_000, 0, 600, rpcRoom, rpcRoom - 4, 64 << 10, 3, 20_000, 1} {
		for side, conn := range sides {
			v := fmt.Sprint("side ", side, " RPC ", i, ": ") + string(noise(max(size-20, 0)))
			if err := conn.SendRPC(rpc.say.New([]byte(v))); err != nil {
				t.Fatal(err)
			}
			sent[1-side] = append(sent[1-side], v)
		}
	}
	for b.ticks < 5000 && len(got[0])+len(got[1]) < 20 {
		b.update()
		for side, conn := range sides {
			got[side] = append(got[side], read(conn, rpc.say)...)
		}
		b.flush()
	}
	for side := range sides {
		if !slices.Equal(got[side], sent[side]) {
			t.Errorf("side %d: %d of %d RPCs arrived, or in another order", side, len(got[side]), len(sent[side]))
		}
	}
}

// TestLargeRPCQueue: the queue bounds what waits, and has room again when it was sent.
func TestLargeRPCQueue(t *testing.T) {
	rpc := newCalls(t)
	cfg := netcode.Config{RPCs: rpc.reg, Limits: netcode.Limits{MaxRPCQueue: 50_000}}
	b, s, c := pair(t, cfg, cfg)
	v := rpc.say.New(noise(30_000))
	if err := s.SendRPC(rpc.say.New(make([]byte, 49_900))); err != netcode.ErrTooLarge {
		t.Errorf("above the queue: %v", err)
	}
	for i, want := range []error{nil, netcode.ErrQueueFull} {
		if err := s.SendRPC(v); err != want {
			t.Errorf("RPC %d: %v, want %v", i, err, want)
		}
	}
	if n := b.server.Broadcast(v); n != 0 {
		t.Errorf("a broadcast passed the limit of %d", n)
	}
	if st, _ := s.Stats(); st.RPCsQueued > 50_000 || st.RPCsSent != 1 {
		t.Errorf("%d bytes of %d RPCs are queued", st.RPCsQueued, st.RPCsSent)
	}
	b.flush()
	if got := b.receive(c, rpc.say, 1); len(got) != 1 {
		t.Fatal("the RPC did not arrive")
	}
	if n := b.server.Broadcast(v); n != 1 {
		t.Errorf("a broadcast reached %d", n)
	}
	if got := b.receive(c, rpc.say, 1); len(got) != 1 || got[0] != string(noise(30_000)) {
		t.Errorf("%d broadcasts arrived, or other bytes", len(got))
	}
}

// TestDisconnectWithinLargeRPC: what ends a connection in the middle leaves nothing behind,
// and the next connection in its place begins with nothing.
func TestDisconnectWithinLargeRPC(t *testing.T) {
	for _, k := range []struct {
		name           string
		end            func(b *testNetwork, s, c netcode.Conn)
		server, client netcode.Reason
	}{
		{"receiver", func(_ *testNetwork, s, _ netcode.Conn) { s.Disconnect(netcode.ReasonServerFull, "") },
			netcode.ReasonServerFull, netcode.ReasonClosedByRemote},
		{"sender, whose notice does not arrive in time", func(_ *testNetwork, _, c netcode.Conn) { c.Disconnect(netcode.ReasonServerFull, "") },
			netcode.ReasonClosedByRemote, netcode.ReasonServerFull},
	} {
		t.Run(k.name, func(t *testing.T) {
			rpc := newCalls(t)
			cfg := netcode.Config{RPCs: rpc.reg, Limits: netcode.Limits{MaxRPCLen: 1 << 20, MaxRPCQueue: 2 << 20}}
			b, s, c := pair(t, cfg, cfg)
			if err := c.SendRPC(rpc.say.New(noise(1 << 20))); err != nil {
				t.Fatal(err)
			}
			b.tick(3)
			if n, _ := s.Partial(); n < 2*rpcRoom {
				t.Fatalf("%d bytes have arrived", n)
			}
			k.end(b, s, c)
			for range 100 {
				b.update()
				if got := read(s, rpc.say); len(got) > 0 {
					t.Fatal("the game got the RPC")
				}
				b.flush()
			}
			if n, room := s.Partial(); n+room != 0 {
				t.Errorf("%d bytes are kept, in %d", n, room)
			}
			log := strings.Join(b.log, "\n")
			for side, reason := range map[string]netcode.Reason{"S": k.server, "C1": k.client} {
				if !strings.Contains(log, side+": 1 disconnected, "+reason.String()) {
					t.Errorf("no end of %s by %v in:\n%s", side, reason, log)
				}
			}
			again := b.connect(b.clients[0])
			b.tick(5)
			if err := again.SendRPC(rpc.say.New(noise(5000))); err != nil {
				t.Fatal(err)
			}
			if got := b.receive(b.only(), rpc.say, 1); len(got) != 1 || got[0] != string(noise(5000)) {
				t.Error("the next connection lost its RPC")
			}
		})
	}
}

// TestLargeLastWords: a large RPC before Disconnect arrives, and the reason behind it.
func TestLargeLastWords(t *testing.T) {
	b, rpc, s, c := rpcPair(t, false)
	if err := s.SendRPC(rpc.say.New(noise(64 << 10))); err != nil {
		t.Fatal(err)
	}
	s.Disconnect(netcode.ReasonApprovalFailure, "bye")
	if got := b.receive(c, rpc.say, 1); len(got) != 1 || got[0] != string(noise(64<<10)) {
		t.Errorf("%d RPCs arrived, or other bytes", len(got))
	}
	b.tick(5)
	if log := strings.Join(b.log, "\n"); !strings.Contains(log, "C1: 1 disconnected, closed by remote") || !strings.Contains(log, "bye") {
		t.Errorf("events:\n%s", log)
	}
}

// TestLargeRPCBeforeConnected: neither side allows one, of whatever kind.
func TestLargeRPCBeforeConnected(t *testing.T) {
	rpc := newCalls(t)
	cfg := netcode.Config{RPCs: rpc.reg, RequireApproval: true}
	b, s, c := pair(t, cfg, cfg)
	one := b.server.MaxRPC()
	for _, conn := range []netcode.Conn{s, c} {
		if conn.State() != netcode.StateApproval {
			t.Fatal(conn.State())
		}
		if err := conn.SendRPC(rpc.approve.New(make([]byte, one+1))); err != netcode.ErrTooLarge {
			t.Errorf("above one packet: %v", err)
		}
	}
	if err := c.SendRPC(rpc.approve.New(make([]byte, one))); err != nil {
		t.Error(err)
	}
	if got := b.receive(s, rpc.approve, 1); len(got) != 1 {
		t.Error("the RPC of one packet was lost")
	}
	for _, handshake := range []bool{false, true} {
		b := newTestNetwork(t, cfg)
		r := newRawPeer(t, b)
		if !handshake {
			r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
			b.tick(1)
		}
		conn := b.only()
		r.say(t, b, utp.EntitiesReliable, packet(firstPart(100, 1, 'x')))
		b.update()
		if _, room := conn.Partial(); conn.State() != netcode.StateDisconnected || room != 0 {
			t.Errorf("in handshake %v: %v, and %d bytes are allocated", handshake, conn.State(), room)
		}
		b.flush()
	}
}

// connectRawPeer is a raw peer that has sent its version and is connected.
func connectRawPeer(t testing.TB, b *testNetwork) *rawPeer {
	t.Helper()
	r := newRawPeer(t, b)
	r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
	b.tick(1)
	r.pass(b)
	if s := b.only(); s.State() != netcode.StateConnected {
		t.Fatal(s.State())
	}
	b.log = b.log[:0]
	return r
}

// firstPart is the first part of a large RPC with an index below 256.
func firstPart(size uint32, index byte, body ...byte) utp.RPC {
	head := append(binary.LittleEndian.AppendUint32(nil, size), index, 0)
	return system(0xFFFA, append(head, body...)...)
}

func part(body ...byte) utp.RPC { return system(0xFFF9, body...) }

// pickyCalls is like newCalls, but the values of approve have at most one byte.
func pickyCalls(t *testing.T) (*netcode.RPCRegistry, netcode.RPCType[[]byte]) {
	t.Helper()
	reg := new(netcode.RPCRegistry)
	say, err := netcode.RegisterRPC(reg, "say", netcode.Raw())
	if err != nil {
		t.Fatal(err)
	}
	picky := netcode.Raw()
	picky.Parse = func(b []byte) (v, rest []byte, err error) { return b[:min(1, len(b))], b[min(1, len(b)):], nil }
	if _, err := netcode.RegisterRPC(reg, "approve", picky); err != nil {
		t.Fatal(err)
	}
	return reg, say
}

// TestInvalidParts: parts that break the rules end the connection, and nothing is kept.
func TestInvalidParts(t *testing.T) {
	odd := part(1, 2)
	odd.Bits--
	for _, c := range []struct {
		name, detail string
		packets      [][]byte
	}{
		{"no beginning", "without the first", [][]byte{packet(part(1))}},
		{"no beginning after a complete one", "without the first", [][]byte{packet(firstPart(2, 0, 1), part(2), part(3))}},
		{"a beginning within", "between the parts", [][]byte{packet(firstPart(3, 0, 1)), packet(firstPart(3, 0, 1))}},
		{"a small RPC within", "between the parts", [][]byte{packet(firstPart(3, 0, 1)), packet(utp.RPC{Index: 0})}},
		{"a small RPC by hash within", "between the parts", [][]byte{packet(firstPart(3, 0, 1), named("say"))}},
		{"a notice within", "between the parts", [][]byte{packet(firstPart(3, 0, 1)), packet(system(0xFFFB, 0))}},
		{"an index below those of the package within", "between the parts", [][]byte{packet(firstPart(3, 0, 1), system(0xFFF8, 1))}},
		{"cut off within", "cut off", [][]byte{append(packet(firstPart(3, 0, 1)), 1, 0)}},
		{"trailing bits", "trailing bits", [][]byte{packet(firstPart(3, 0, 1), odd)}},
		{"too many bytes", "a part of RPC say has a wrong length", [][]byte{packet(firstPart(3, 0, 1), part(2, 3, 4))}},
		{"an empty part", "a part of RPC say has a wrong length", [][]byte{packet(firstPart(3, 0, 1), part())}},
		{"an empty first part", "first part of RPC say has a wrong", [][]byte{packet(firstPart(3, 0))}},
		{"complete in the first part", "first part of RPC say has a wrong", [][]byte{packet(firstPart(1, 0, 1))}},
		{"less than the first part", "first part of RPC say has a wrong", [][]byte{packet(firstPart(0, 0, 1))}},
		{"a short head", "first part of an RPC is cut off", [][]byte{packet(system(0xFFFA, 3, 0, 0, 0, 0))}},
		{"no head", "first part of an RPC is cut off", [][]byte{packet(system(0xFFFA))}},
		{"an unknown index", "unknown", [][]byte{packet(firstPart(3, 2, 1))}},
		{"an unknown hash", "unknown", [][]byte{packet(system(0xFFFA, 30, 0, 0, 0, 0xFF, 0xFF, 1, 2, 3, 4, 5, 6, 7, 8, 9))}},
		{"a short hash", "unknown", [][]byte{packet(system(0xFFFA, 30, 0, 0, 0, 0xFF, 0xFF, 1, 2, 3, 4, 5, 6, 7))}},
		{"a part as a whole", "unknown", [][]byte{packet(system(0xFFFA, 30, 0, 0, 0, 0xF9, 0xFF, 1, 2))}},
		{"above the limit", "larger than MaxRPCLen", [][]byte{packet(firstPart(1001, 0, 1))}},
		{"the largest length", "larger than MaxRPCLen", [][]byte{packet(firstPart(1<<32-1, 0, 1))}},
		{"a value that the codec refuses", "RPC approve has a wrong length", [][]byte{packet(firstPart(3, 1, 'n'), part('o', '!'))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg, say := pickyCalls(t)
			b := newTestNetwork(t, netcode.Config{RPCs: reg, Limits: netcode.Limits{MaxRPCLen: 1000}})
			r := connectRawPeer(t, b)
			s := b.only()
			for _, p := range c.packets {
				if s.State() != netcode.StateConnected {
					t.Fatalf("%v before the last packet", s.State())
				}
				r.say(t, b, utp.EntitiesReliable, p)
				b.update()
				if got := read(s, say); len(got) > 0 {
					t.Errorf("the game got %q", got)
				}
				b.flush()
			}
			b.expect(fmt.Sprintf("%d S: 1 disconnected, invalid RPC", b.ticks))
			r.pass(b)
			if text := r.closeText(); !strings.Contains(text, c.detail) {
				t.Errorf("the peer gets %q, want %q", text, c.detail)
			}
			if n, room := s.Partial(); n+room != 0 {
				t.Errorf("%d bytes are kept, in %d", n, room)
			}
		})
	}
}

// TestLargeRPCMemory: memory follows what has arrived, not what was announced.
func TestLargeRPCMemory(t *testing.T) {
	const size = 200_000
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, Limits: netcode.Limits{MaxRPCLen: 1 << 20}})
	r := connectRawPeer(t, b)
	s, sent := b.only(), noise(size)
	r.say(t, b, utp.EntitiesReliable, packet(firstPart(size, 0, sent[0])))
	b.tick(1)
	for at := 1; at < size; {
		if n, room := s.Partial(); n != at || room > 2*n || room > size {
			t.Fatalf("%d of %d bytes are kept, in %d", n, at, room)
		}
		end := min(at+1300, size)
		r.say(t, b, utp.EntitiesReliable, packet(part(sent[at:end]...)))
		at = end
		b.update()
		if got := read(s, rpc.say); (at == size) != (len(got) == 1) || at == size && got[0] != string(sent) {
			t.Fatalf("after %d bytes: %d RPCs, or other bytes", at, len(got))
		}
		b.flush()
		r.pass(b)
	}
	if n, room := s.Partial(); n+room != 0 {
		t.Errorf("%d bytes are kept of a complete RPC, in %d", n, room)
	}
}

func TestRPCsAndMessagesDoNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	b, rpc, s, c := rpcPair(t, false)
	payload, received, messages := make([]byte, 200), 0, 0
	small := rpc.say.New(payload)
	turn := func() {
		b.now = b.now.Add(b.step)
		_, _ = b.server.Update(b.now), b.clients[0].Update(b.now)
		for r := range s.RPCs() {
			if _, ok := rpc.say.From(r); ok {
				received++
			}
		}
		for range s.Messages() {
			messages++
		}
		for range 10 { // More than a packet.
			_ = c.SendRPC(small)
		}
		_ = c.SendMessage(payload)
		b.flush()
	}
	for range 50 {
		turn()
	}
	received, messages = 0, 0
	if n := testing.AllocsPerRun(100, turn); n != 0 || received != 1010 || messages != 101 {
		t.Errorf("%v allocations a tick, %d RPCs, %d messages", n, received, messages)
	}
}
