package dtls

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestFootprint: a session and a half-open handshake take the memory that Config
// documents.
func TestFootprint(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	const n = 2048
	for _, c := range []struct {
		what  string
		limit int
		then  func(p *peer)
	}{
		{"handshake", 1 << 10, func(*peer) {}},
		{"handshake at its last step", 3 << 10, func(p *peer) {
			p.key[0] ^= 1
			if p.accepted(p.g.put(p.from, append(p.wrap(p.exchange()), p.finished()...))) {
				t.Fatal("a wrong key made a session")
			}
		}},
		{"session", 2 << 10, func(p *peer) {
			if !p.accepted(p.g.put(p.from, append(p.wrap(p.exchange()), p.finished()...))) {
				t.Fatal("no session")
			}
		}},
	} {
		for _, suite := range []uint16{0xA8, 0xA9} {
			t.Run(fmt.Sprintf("%s %x", c.what, suite), func(t *testing.T) {
				g := newRig(t, Config{HalfOpen: 2 * n, Direct: n, HandshakeTimeout: 10 * time.Minute})
				before := heap()
				for i := range n {
					from := home
					from.Lo += uint64(i)
					p := newPeer(g, from, i)
					p.suites = []uint16{suite}
					if !p.start() {
						t.Fatal("no answer")
					}
					c.then(p)
				}
				each := (int64(heap()) - int64(before)) / n
				t.Logf("%d bytes each", each)
				if each > int64(c.limit) {
					t.Errorf("%d bytes each, more than %d", each, c.limit)
				}
				runtime.KeepAlive(g)
			})
		}
	}
}
