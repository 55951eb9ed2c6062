package netcode_test

import (
	"encoding/binary"
	"hash/fnv"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/utp"
)

// rawPeer is a peer of the bare transport, which can send anything.
type rawPeer struct {
	*utp.Endpoint
	node link.Link
	conn utp.ConnID
}

func newRawPeer(t testing.TB, b *testNetwork) *rawPeer {
	t.Helper()
	return newRawPeerOf(t, b, utp.NetcodeForEntities())
}

func newRawPeerOf(t testing.TB, b *testNetwork, cfg utp.Config) *rawPeer {
	t.Helper()
	node, err := b.net.Open(address.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	cfg.Rand, cfg.ValidateAddresses = newChance(77), true
	ep, err := utp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rawPeer{Endpoint: ep, node: node}
	if r.conn, err = ep.Connect(b.node.Local()); err != nil {
		t.Fatal(err)
	}
	r.pass(b)
	b.tick(1)
	r.pass(b) // The request again, with the server's cookie.
	b.tick(1)
	r.pass(b)
	return r
}

// pass carries what waits in both directions.
func (r *rawPeer) pass(b *testNetwork) {
	buf := make([]byte, link.MaxDatagram)
	for ev := r.node.Receive(buf); ev.Kind != link.Nothing; ev = r.node.Receive(buf) {
		r.Receive(ev.Addr, buf[:ev.N])
	}
	r.Flush()
	for _, data, ok := r.Next(); ok; _, data, ok = r.Next() {
		_ = r.node.Send(b.node.Local(), data)
	}
	b.net.Step()
}

func (r *rawPeer) say(t testing.TB, b *testNetwork, p utp.PipelineID, data []byte) {
	t.Helper()
	if err := r.Send(r.conn, p, data); err != nil {
		t.Fatal(err)
	}
	r.pass(b)
}

// newRawServer replaces the network's server. The client d, whose Connect
// was called, has its first event afterwards, and its request is answered.
func newRawServer(t testing.TB, b *testNetwork, d *netcode.Driver) *rawPeer {
	t.Helper()
	ep, err := utp.New(utp.NetcodeForEntities())
	if err != nil {
		t.Fatal(err)
	}
	ep.Listen(true)
	r := &rawPeer{Endpoint: ep, node: b.node}
	b.server, b.clients = d, nil
	b.tick(1)
	r.answer(b)
	ev, ok := ep.NextEvent()
	if !ok || ev.Kind != utp.EventIncoming {
		t.Fatalf("%+v", ev)
	}
	r.conn = ev.Conn
	ep.Admit(r.conn) // So that the first messages fit into the limit, whatever their size.
	return r
}

// answer is pass for a server.
func (r *rawPeer) answer(b *testNetwork) {
	buf := make([]byte, link.MaxDatagram)
	for ev := r.node.Receive(buf); ev.N > 0; ev = r.node.Receive(buf) {
		r.Receive(ev.Addr, buf[:ev.N])
	}
	r.Flush()
	for _, data, ok := r.Next(); ok; _, data, ok = r.Next() {
		_ = r.node.Send(b.nodes[0].Local(), data)
	}
	b.net.Step()
}

// packet is a packet of RPCs.
func packet(rpcs ...utp.RPC) []byte {
	b := utp.AppendRPCPacket(nil, 1)
	for _, r := range rpcs {
		b = r.Append(b)
	}
	return b
}

// system is an RPC of package netcode.
func system(index uint16, body ...byte) utp.RPC {
	return utp.RPC{Index: index, Bits: uint16(8 * len(body)), Payload: body}
}

// named is a game's RPC by the hash of its name, which any version takes.
func named(name string, body ...byte) utp.RPC {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return system(0xFFFF, append(binary.LittleEndian.AppendUint64(nil, h.Sum64()), body...)...)
}

// versionRPC is written down here once more, from the documentation.
func versionRPC(v netcode.ProtocolVersion) utp.RPC {
	b := binary.LittleEndian.AppendUint32(nil, uint32(v.Protocol))
	b = binary.LittleEndian.AppendUint32(b, uint32(v.Game))
	b = binary.LittleEndian.AppendUint64(b, v.RPCs)
	b = binary.LittleEndian.AppendUint64(b, v.Components)
	return system(0xFFFE, append(b, 0, 0, 0, 0)...)
}

// What a server says.
var (
	getApproved = system(0xFFFD)
	approved    = system(0xFFFC, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
)

// speak is say for a server.
func (r *rawPeer) speak(t testing.TB, b *testNetwork, p utp.PipelineID, data []byte) {
	t.Helper()
	if err := r.Send(r.conn, p, data); err != nil {
		t.Fatal(err)
	}
	r.answer(b)
}

// closeText returns the text of the close notice that came, "" if none did.
func (r *rawPeer) closeText() string {
	for ev, ok := r.NextEvent(); ok; ev, ok = r.NextEvent() {
		if ev.Kind != utp.EventData || ev.Pipeline != utp.EntitiesReliable {
			continue
		}
		_, rest, ok := utp.ParseRPCPacket(ev.Data)
		for ok && len(rest) > 0 {
			var rpc utp.RPC
			rpc, rest, ok = utp.ParseRPC(rest)
			if ok && rpc.Index == 0xFFFB && len(rpc.Payload) > 0 {
				return string(rpc.Payload[1:])
			}
		}
	}
	return ""
}
