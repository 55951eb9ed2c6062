package dtls

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

// TestConcurrent: many workers open and seal for one session while others are added,
// removed and replaced. Each record is opened once, and each sealed one has a unique
// number.
func TestConcurrent(t *testing.T) {
	const routines, each = 4, 200
	g := newRig(t, Config{Quiet: time.Millisecond})
	p := newPeer(g, home, 1)
	mustConnect(t, p)
	serial := checkEcho(t, p, testID(1)).Serial
	var records [][]byte
	for range windowSize / 2 {
		records = append(records, p.seal("x"))
	}
	var opened atomic.Int64
	var mu sync.Mutex
	numbers := make(map[string]bool)
	var wg sync.WaitGroup
	for range routines {
		wg.Go(func() {
			for _, b := range records {
				if s, _ := g.Open(home, bytes.Clone(b)); s.Serial == serial {
					opened.Add(1)
				}
			}
			out := make([]byte, 0, 100+engine.RecordOverhead)
			for range each {
				b, _, _ := g.Seal(out, serial, []byte("y"))
				mu.Lock()
				numbers[string(b[3:11])] = true
				mu.Unlock()
				g.Alive(home)
				g.Stats()
			}
		})
	}
	other := newPeer(g, at("192.0.2.9:1"), 2)
	mustConnect(t, other)
	for range 10 {
		next := newPeer(g, other.from, 2)
		g.wait("an answer", next.start)
		if !next.accepted(g.put(next.from, append(next.wrap(next.exchange()), next.finished()...))) {
			t.Error("no session")
		}
	}
	wg.Wait()
	if opened.Load() != int64(len(records)) {
		t.Errorf("%d of %d records were opened", opened.Load(), len(records))
	}
	if len(numbers) != routines*each {
		t.Errorf("%d numbers for %d records", len(numbers), routines*each)
	}
}

// TestTable: sessions that share chains are found and removed one by one, and no
// serial is used twice.
func TestTable(t *testing.T) {
	tb := newTable(64, 64)
	var all []*session
	serials := make(map[uint64]bool)
	for round := range 3 {
		all = all[:0]
		for i := range 64 {
			s := &session{id: testID(i % 3), from: at("192.0.2.1:1")}
			s.from.Lo += uint64(i)
			s.lastReceived.Store(int64(i))
			if _, ok := tb.add(s, func() {}); !ok || serials[s.serial] {
				t.Fatalf("round %d: session %d: %v", round, i, ok)
			}
			serials[s.serial] = true
			all = append(all, s)
		}
		if _, ok := tb.add(&session{from: home}, func() {}); ok {
			t.Fatal("one too many")
		}
		for since := range 65 {
			if since > 0 && tb.sweep(int64(since)) != 1 {
				t.Fatalf("not one is taken out at %d", since)
			}
			for i, s := range all {
				alive := i >= since
				if (tb.source(s.from) == s) != alive || (tb.serial(s.serial) == s) != alive {
					t.Fatalf("session %d at %d", i, since)
				}
			}
		}
		if len(tb.ids) != 0 || tb.sessions.Load() != 0 {
			t.Fatalf("left: %d, %d", len(tb.ids), tb.sessions.Load())
		}
	}
}
