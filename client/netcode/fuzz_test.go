package netcode_test

import (
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/internal/utp"
)

// FuzzSession lets a client of the bare transport, and an unknown sender, send anything
// to a live server, which must still accept a regular client afterwards. The input
// is a list of: what to do, how many bytes, the bytes.
func FuzzSession(f *testing.F) {
	d, err := netcode.NewClient(netcode.Config{RPCs: newCalls(f).reg})
	if err != nil {
		f.Fatal(err)
	}
	version := packet(versionRPC(d.Version()))
	f.Add([]byte{0, 13, 'U', 'T', 'P', 1, 1, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(append([]byte{1, byte(len(version))}, version...))
	f.Add([]byte{1, 9, 2, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0})
	f.Add([]byte{1, 10, 2, 1, 0, 0, 0, 0xFB, 0xFF, 8, 0, 3})
	f.Add([]byte{1, 9, 2, 1, 0, 0, 0, 0xFF, 0xFF, 0, 0})
	f.Add([]byte{2, 1, 0, 2, 18, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 2, 0, 0xC0})
	f.Add(append(append([]byte{1, byte(len(version))}, version...), 2, 3, 3, 'm', 's', 2, 1, 3))
	commands := append(make([]byte, 17), 3, 9, 0, 0, 0, 1, 2, 0, 'a', 'b', 255, 0, 0, 'c')
	f.Add(append(append([]byte{1, byte(len(version))}, version...), append([]byte{2, byte(len(commands))}, commands...)...))
	for _, later := range []utp.RPC{part(2, 3), part(), part(2, 3, 4), firstPart(3, 0, 1), system(0xFFFB, 0)} {
		script := append([]byte{1, byte(len(version))}, version...)
		for _, p := range [][]byte{packet(firstPart(3, 0, 1)), packet(later)} {
			script = append(append(script, 1, byte(len(p))), p...)
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		rpc := newCalls(t)
		b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg})
		r := newRawPeer(t, b)
		for len(script) >= 2 && b.ticks < 50 {
			do, n := script[0], min(int(script[1]), len(script)-2)
			data := script[2 : 2+n]
			script = script[2+n:]
			switch {
			case do%4 == 0:
				_ = r.node.Send(b.node.Local(), data)
			default: // Refused when the connection is over, which is fine.
				_ = r.Send(r.conn, [...]utp.PipelineID{0, utp.EntitiesReliable, utp.EntitiesUnreliable, utp.EntitiesFragmented}[do%4], data)
			}
			r.pass(b)
			b.tick(1)
			for c := range b.server.Conns() {
				c.SetInGame(true)
				for range c.Commands() {
				}
			}
		}
		_, c := b.join(netcode.Config{RPCs: rpc.reg})
		b.tick(6)
		if c.State() != netcode.StateConnected {
			t.Errorf("an honest client is %v", c.State())
		}
	})
}

// FuzzClient lets a server of the bare transport say anything to a client.
func FuzzClient(f *testing.F) {
	f.Add([]byte{2, 1, 0, 0, 0, 0xFD, 0xFF, 0, 0}, true)
	f.Add([]byte{2, 1, 0, 0, 0, 0xFC, 0xFF, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, true)
	f.Add([]byte{2, 1, 0, 0, 0, 0xFB, 0xFF, 24, 0, 101, 0xFF, 'x'}, true)
	f.Add(packet(firstPart(3, 0, 1)), true)
	f.Add(packet(part(1)), true)
	accepted := versionRPC(netcode.ProtocolVersion{Protocol: netcode.WireVersion})
	f.Add(packet(accepted, approved, firstPart(3, 0, 1), part(2, 3)), true)
	f.Add(packet(accepted, approved, firstPart(3, 0, 1), firstPart(3, 0, 1)), true)
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 7, 0, 0, 0}, false)
	f.Fuzz(func(t *testing.T, data []byte, reliable bool) {
		b := newTestNetwork(t, netcode.Config{})
		d, c := b.join(netcode.Config{RPCs: newCalls(t).reg, RelaxedVersion: true})
		r := newRawServer(t, b, d)
		p := utp.EntitiesUnreliable
		if reliable {
			p = utp.EntitiesReliable
		}
		if r.Send(r.conn, p, data) == nil {
			r.answer(b)
		}
		b.tick(1)
		c.SetInGame(true)
		b.tick(2)
	})
}

// FuzzRPC lets a client say any RPCs in one packet to a server that is as far as
// the state says. What the game gets is allowed there, and a connection that does
// not end is still where it was, or further.
func FuzzRPC(f *testing.F) {
	version := func(v netcode.ProtocolVersion) []byte { return versionRPC(v).Append(nil) }
	plain := netcode.ProtocolVersion{Protocol: netcode.WireVersion}
	for state := range byte(3) {
		f.Add(state, false, named("say", 1, 2).Append(nil))
		f.Add(state, true, named("approve", 1).Append(named("approve").Append(nil)))
		f.Add(state, false, version(plain))
		f.Add(state, true, version(plain))
		f.Add(state, false, getApproved.Append(nil))
		f.Add(state, false, approved.Append(nil))
		f.Add(state, true, system(0xFFFB, 101, 'n', 'o').Append(nil))
		f.Add(state, false, utp.RPC{Index: 1, Bits: 9, Payload: []byte{1, 2}}.Append(nil))
		f.Add(state, false, []byte{0, 0, 0xFF, 0xFF, 1})
		for _, rpcs := range [][]utp.RPC{
			{firstPart(3, 0, 1)}, {firstPart(3, 0, 1), part(2, 3)}, {firstPart(3, 0, 1), part(2, 3, 4)},
			{part(1)}, {firstPart(1<<32-1, 1, 1)}, {firstPart(3, 0, 1), named("say")},
			{system(0xFFFA, append([]byte{3, 0, 0, 0, 0xFF, 0xFF}, named("say", 1).Payload...)...), part(2, 3)},
		} {
			f.Add(state, state == 1, packet(rpcs...)[utp.RPCPacketLen:])
		}
	}
	f.Fuzz(func(t *testing.T, state byte, relaxed bool, rpcs []byte) {
		rpc := newCalls(t)
		state %= 3
		b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg, RelaxedVersion: relaxed, RequireApproval: state == 1})
		r := newRawPeer(t, b)
		if state > 0 {
			r.say(t, b, utp.EntitiesReliable, packet(versionRPC(b.server.Version())))
			b.tick(1)
			r.pass(b)
		}
		s := b.only()
		before := s.State()
		if r.Send(r.conn, utp.EntitiesReliable, append(packet(), rpcs...)) != nil {
			return // More than a packet.
		}
		r.pass(b)
		b.update()
		if s.State() != netcode.StateDisconnected && s.State() < before {
			t.Fatalf("%v became %v", before, s.State())
		}
		if got := read(s, rpc.say); len(got) > 0 && s.State() != netcode.StateConnected {
			t.Fatalf("the game got %q while %v", got, s.State())
		}
		b.flush()
		b.tick(2)
	})
}
