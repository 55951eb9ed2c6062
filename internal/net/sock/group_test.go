package sock

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

func loopbackAddr(i uint32) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 127<<24|1<<16|i)
	return netip.AddrFrom4(a)
}

// wildcard listens on 0.0.0.0, where the platform can choose a source address.
func wildcard(t *testing.T) *Group {
	t.Helper()
	g := listenOn(t, "0.0.0.0:0")
	if !g.Capabilities().LocalAddress {
		if _, err := g.Locals([]netip.Addr{loopbackAddr(1)}); !errors.Is(err, ErrLocals) {
			t.Errorf("Locals without the capability: %v", err)
		}
		t.Skip("this platform chooses the source address itself")
	}
	return g
}

func TestLocalsAssigned(t *testing.T) {
	g := wildcard(t)
	addrs := []netip.Addr{loopbackAddr(7), loopbackAddr(8), loopbackAddr(7)}
	ids, err := g.Locals(addrs)
	if err != nil {
		t.Fatal(err)
	}
	if ids[0] != ids[2] || ids[0] == ids[1] || ids[0] == 0 || ids[1] == 0 {
		t.Errorf("numbers %v", ids)
	}
	for i, id := range ids {
		if got, ok := g.LocalAddr(id); !ok || got != addrs[i] {
			t.Errorf("number %d is %v, want %v", id, got, addrs[i])
		}
	}
}

// TestLocalsSource sends from an assigned address before anything arrived there.
func TestLocalsSource(t *testing.T) {
	g := wildcard(t)
	ids, err := g.Locals([]netip.Addr{loopbackAddr(300)})
	if err != nil {
		t.Fatal(err)
	}
	peer := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	tx := c.NewSendBatch(1)
	tx.Add(endpoint.UDP(peer.Addr(), ids[0], 0), []byte("hello"))
	if res := c.Send(tx); res.Sent != 1 {
		t.Fatalf("%+v", res)
	}
	rx := peer.Conns()[0].NewRecvBatch()
	recvSome(t, peer.Conns()[0], rx)
	from, pkt, _ := rx.At(0)
	want := netip.AddrPortFrom(loopbackAddr(300), g.Addr().Port())
	if from.AddrPort() != want || string(pkt) != "hello" {
		t.Errorf("%q from %v, want it from %v", pkt, from, want)
	}
}

func TestLocalsRefused(t *testing.T) {
	for _, addr := range []netip.Addr{{}, netip.IPv6Loopback(), netip.MustParseAddr("fe80::1%1")} {
		if _, err := wildcard(t).Locals([]netip.Addr{addr}); !errors.Is(err, ErrLocals) {
			t.Errorf("%v: %v", addr, err)
		}
	}
	if _, err := listenOn(t, "127.0.0.1:0").Locals(nil); !errors.Is(err, ErrLocals) {
		t.Errorf("without a wildcard: %v", err)
	}
}

func TestLocalsBound(t *testing.T) {
	g := wildcard(t)
	addrs := make([]netip.Addr, maxAssigned+1)
	for i := range addrs {
		addrs[i] = loopbackAddr(uint32(i))
	}
	if _, err := g.Locals(addrs); !errors.Is(err, ErrLocals) {
		t.Errorf("one too many: %v", err)
	}
	if _, ok := g.LocalAddr(1); ok {
		t.Error("a refused call has left numbers behind")
	}
	ids, err := g.Locals(addrs[:maxAssigned])
	if err != nil {
		t.Fatal(err)
	}
	if last := ids[maxAssigned-1]; last != maxAssigned {
		t.Errorf("last number %d", last)
	}
}

func TestLocals(t *testing.T) {
	l := newLocals()
	if _, ok := l.at(0); ok {
		t.Error("number 0 has an address")
	}
	for i := range maxLocals {
		a := localAddr{lo: uint64(i + 1)}
		id := l.id(a)
		if int(id) != i+1 || l.id(a) != id {
			t.Fatalf("address %d has number %d, then %d", i, id, l.id(a))
		}
		if got, ok := l.at(id); !ok || got != a {
			t.Fatalf("number %d gives %v, %v", id, got, ok)
		}
	}
	if id := l.id(localAddr{lo: 1 << 40}); id != 0 {
		t.Errorf("beyond the bound: number %d", id)
	}
	if id := l.id(localAddr{lo: 5}); id != 5 {
		t.Errorf("a full table forgot address 5: %d", id)
	}
	if _, ok := l.at(maxLocals + 1); ok {
		t.Error("a number that was never given has an address")
	}
	if localAddr := (localAddr{lo: 5, zone: 1}); l.id(localAddr) != 0 {
		t.Error("the zone does not count")
	}
}

func TestLocalsConcurrent(t *testing.T) {
	l := newLocals()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 300 {
				a := localAddr{hi: 1, lo: uint64((i*7 + w) % 300)}
				id := l.id(a)
				if got, ok := l.at(id); !ok || got != a {
					t.Errorf("number %d gives %v, want %v", id, got, a)
				}
			}
		})
	}
	wg.Wait()
	if n := len(l.table.Load().addrs); n != 301 {
		t.Errorf("%d entries, want 301", n)
	}
}
