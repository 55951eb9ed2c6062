package dtls

import (
	"runtime"
	"testing"

	pion "github.com/pion/dtls/v3"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/testkit"
)

// heap returns the size of the heap after a garbage collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

const floodSize = 100_000

// TestFlood replays one ClientHello a hundred thousand times: memory and goroutines
// do not grow, and honest clients can connect at the same time.
func TestFlood(t *testing.T) {
	for _, c := range []struct {
		name   string
		source func(i int) endpoint.Endpoint
	}{
		{"from forged sources", func(i int) endpoint.Endpoint {
			e := home
			e.Lo = uint64(10<<24 + i)
			return e
		}},
		{"from forged ports", func(i int) endpoint.Endpoint {
			e := home
			e.Lo = 10 << 24
			e.Tail = e.Tail&^0xFFFF | uint64(i&0xFFFF)
			return e
		}},
		{"from its source", func(int) endpoint.Endpoint { return at("10.0.0.1:5") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, Config{})
			hello := newPeer(g, home, 1).hello(nil)
			flood := func(n int) {
				for i := range n {
					g.Open(c.source(i), hello)
					if i%200 == 0 {
						g.settle()
					}
				}
				g.settle()
				g.mu.Lock()
				g.got = make(map[endpoint.Endpoint][][]byte) // An emptied one keeps its size.
				g.mu.Unlock()
			}
			flood(2000)
			before, routines := heap(), runtime.NumGoroutine()
			for i := range 10 {
				flood(floodSize / 10)
				mustConnect(t, newPeer(g, home, i))
				g.table.source(home).ended.Store(true)
			}
			after := heap()
			if after > before+1<<20 {
				t.Errorf("the heap grew from %d to %d bytes", before, after)
			}
			// One of an earlier test, or of the runtime, may be there for a moment.
			testkit.Eventually(t, "the goroutines of before", func() bool { return runtime.NumGoroutine() <= routines })
			st := g.Stats()
			if st.Direct > 256 || st.HalfOpen > 256 {
				t.Errorf("%+v", st)
			}
			if st.Counts[DropQueue] == 0 && st.Counts[Hello] < floodSize {
				t.Errorf("only %d hellos", st.Counts[Hello])
			}
			runtime.KeepAlive(g)
		})
	}
}

// TestFloodWithCookies: a prefix that answers with cookies has at most
// HalfOpenPerPrefix handshakes.
func TestFloodWithCookies(t *testing.T) {
	g := newRig(t, Config{})
	for i := range 2000 {
		e := at("10.0.0.1:5")
		e.Tail = e.Tail&^0xFFFF | uint64(i+1)
		newPeer(g, e, i).start()
	}
	if st := g.Stats(); st.HalfOpen != 64 {
		t.Fatalf("%+v", st)
	}
	mustConnect(t, newPeer(g, home, 1))
}

// TestPionInFlood: pion's client gets in over a real socket while another one
// replays its hello as fast as it can.
func TestPionInFlood(t *testing.T) {
	l := newLoop(t, Config{})
	c := newTap(t, "127.0.0.1:0")
	mustPion(t, c, l, 1)
	hello := c.sent()[0]
	flood := newTap(t, "127.0.0.3:0")
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				done <- n
				return
			default:
				flood.PacketConn.WriteTo(hello, l.addr())
			}
		}
	}()
	// What of it the kernel drops depends on the machine; pion's pauses would
	// become longer with each loss.
	steady := pion.ClientOption(pion.WithDisableRetransmitBackoff(true))
	for i := range 3 {
		pionEcho(t, mustPion(t, newTap(t, "127.0.0.2:0"), l, i, steady), "through it")
	}
	close(stop)
	t.Logf("%d hellos meanwhile", <-done)
}
