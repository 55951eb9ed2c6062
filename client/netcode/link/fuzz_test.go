package link_test

import (
	"testing"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// FuzzLinked plays a relay in memory: whatever its nodes do, each sees a peer
// join, then its datagrams, then its leave, and nothing else of it.
func FuzzLinked(f *testing.F) {
	f.Add([]byte{0x00, 0x04, 0x01, 0x03, 0x02, 0x04, 0x03})
	f.Add([]byte{0x10, 0x04, 0x12, 0x10, 0x11, 0x04, 0x13, 0x23, 0x34, 0x05})
	f.Add([]byte("\x10$\x13&$\x12")) // Left waits to be read when the reader hangs up itself.
	f.Fuzz(func(t *testing.T, ops []byte) {
		w := link.NewSmallNetwork(true, 8, 16)
		var nodes [4]*end
		var joined [4]map[address.Addr]bool
		for i := range nodes {
			nodes[i], joined[i] = open(t, w, address.Addr{}), map[address.Addr]bool{}
		}
		for _, op := range ops {
			a := int(op>>4) % 4
			b := (a + 1 + int(op>>6)) % 4
			switch op % 8 {
			case 0:
				_ = w.Link(nodes[a].Local(), nodes[b].Local())
			case 1:
				_ = nodes[a].Send(nodes[b].Local(), ops)
			case 2:
				nodes[a].Disconnect(nodes[b].Local())
				delete(joined[a], nodes[b].Local())
			case 3:
				see(t, nodes[a], joined[a])
			case 4, 5:
				w.Step()
			case 6:
				_ = nodes[a].Close()
			}
		}
		w.Step()
		for i := range nodes {
			see(t, nodes[i], joined[i])
		}
	})
}

// see reads all events of a node.
func see(t *testing.T, e *end, joined map[address.Addr]bool) {
	t.Helper()
	for ev := e.Receive(e.buf); ev.Kind != link.Nothing; ev = e.Receive(e.buf) {
		switch ev.Kind {
		case link.Joined:
			if joined[ev.Addr] {
				t.Fatalf("%v joined twice", ev.Addr)
			}
			joined[ev.Addr] = true
		case link.Left, link.Datagram:
			if !joined[ev.Addr] {
				t.Fatalf("%v from %v, which has not joined", ev.Kind, ev.Addr)
			}
			if ev.Kind == link.Left {
				delete(joined, ev.Addr)
			}
		}
	}
}
