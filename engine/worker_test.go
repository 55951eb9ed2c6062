package engine

import (
	"encoding/json"
	"log/slog"
	"os/exec"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestPublish: a worker publishes once a millisecond, and the rest when publish is called.
func TestPublish(t *testing.T) {
	r := newRig(t, Config{})
	w := r.workers[0]
	for i, c := range []struct {
		at   int64
		want uint64 // batches that others see
	}{{r.now, 1}, {r.now, 1}, {r.now, 1}, {r.now + 1, 4}, {r.now + 1, 4}, {r.now + 7, 6}} {
		w.count(dropShort, 3)
		w.finishBatch(c.at, 1, sock.SendResult{})
		pub := &w.counts.pub
		if got := pub.batches[0].Load(); got != c.want || pub.received.Load() != c.want || pub.receivedBytes.Load() != 3*c.want {
			t.Errorf("after batch %d: %d batches, %d datagrams are published, want %d", i+1, got, pub.received.Load(), c.want)
		}
		if got := pub.outcomes[dropShort].Load(); got != c.want {
			t.Errorf("after batch %d: %d drops are published, want %d", i+1, got, c.want)
		}
	}
	w.count(dropShort, 3)
	w.finishBatch(r.now+7, 1, sock.SendResult{})
	w.publish()
	if got := w.counts.pub.outcomes[dropShort].Load(); got != 7 {
		t.Errorf("%d drops are published in the end, want 7", got)
	}
}

// mustInline are functions on the path of a forwarded datagram, by package: each
// runs for every datagram or batch and would otherwise cost a call.
var mustInline = map[string][]string{
	".": {"tick", "(*epoch).enter", "(*epoch).leave", "(*counters).add", "(*counters).countSent"},
	"../engine/internal/table": {
		"(*Table).Activity", "(*Activity).HasHeard", "(*Activity).TakeQuota", "(*Table).HasRelayed", "(*Activity).RecordRelay",
		"(*Activity).CountRelay",
		"(*Activity).CounterIndex", "takeCost",
	},
	"../internal/net/sock": {"(*gate).enter", "(*gate).leave", "(*SendBatch).Len", "(*merger).hash"},
	"../proto":             {"ParseType", "ParseRelay"},
}

func TestInline(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	for dir, names := range mustInline {
		out, err := exec.Command("go", "build", "-gcflags=-m", dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, name := range names {
			if !strings.Contains(string(out), ": can inline "+name+"\n") {
				t.Errorf("%s in %s does not inline", name, dir)
			}
		}
	}
}

// TestLayout: words that different goroutines write do not share a cache line.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name string
		size uintptr
	}{
		{"epoch", sizeOf[epoch]()},
	} {
		if c.size != 64 {
			t.Errorf("%s has %d bytes, want a cache line", c.name, c.size)
		}
	}
	ring := fieldOffsets[ring]()
	if ring["head"]-ring["tail"] < 64 || ring["tail"]%64 != 0 && ring["tail"]-ring["slots"] < 64 {
		t.Errorf("the ends of a ring share a cache line: %v", ring)
	}
	if b := fieldOffsets[budgets](); b["prefixes"]-b["process"] < 64 || b["process"]-b["recoverRate"]-sizeOf[table.Rate]() < 64 {
		t.Errorf("the process gate shares a cache line with the rates or the prefixes: %v", b)
	}
	if g := fieldOffsets[grace](); g["epochs"]-g["workersMustWake"] < 64 {
		t.Errorf("what workers read of grace periods shares a cache line: %v", g)
	}
	for i := range reflect.TypeFor[shared]().NumField() {
		if f := reflect.TypeFor[shared]().Field(i); f.Type.Kind() == reflect.Array || f.Type.Size() > 256 {
			t.Errorf("%s lies within the lines that workers read for each datagram", f.Name)
		}
	}
}

func sizeOf[T any]() uintptr { return reflect.TypeFor[T]().Size() }

func fieldOffsets[T any]() map[string]uintptr {
	offsets := map[string]uintptr{}
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		offsets[t.Field(i).Name] = t.Field(i).Offset
	}
	return offsets
}

func faults(log *testkit.LogBuffer) (all []map[string]any) {
	for line := range strings.Lines(log.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["fault"] != nil {
			all = append(all, fields)
		}
	}
	return all
}

// TestFault: a fault of ours on one datagram of a batch costs that datagram alone.
func TestFault(t *testing.T) {
	var log testkit.LogBuffer
	s, err := New(Config{Sockets: Sockets{Workers: 1}, Unlimited: true, Logger: slog.New(slog.NewJSONHandler(&log, nil))}, testIdentity(t))
	if err != nil {
		t.Fatal(err)
	}
	s.shared.checker.block = nil // so that a probe panics
	var ahead atomic.Int64
	clock := s.shared.clock
	s.shared.clock = func() int64 { return clock() + ahead.Load() }

	probe := append([]byte(checkMagic), make([]byte, checkLen-len(checkMagic))...)
	faulty, clients := newAsker(t, s).conn, make([]asker, 6)
	for i := range clients { // before the relay runs, so that all are one batch
		clients[i] = newAsker(t, s)
		faulty.Write(probe)
		clients[i].conn.Write(proto.Ping{ID: proto.AllocationID{byte(i)}}.Append(nil))
	}
	faulty.Write(probe)
	stop := runServer(t, s)
	for i, client := range clients {
		if e, err := proto.ParseError(client.hear()); err != nil || e.Code != proto.ErrorMismatch || e.ID != (proto.AllocationID{byte(i)}) {
			t.Errorf("PING %d earned %+v, %v", i, e, err)
		}
	}
	panics := func(n uint64) func() bool {
		return func() bool { return s.Stats().Drops["panic"] == n }
	}
	testkit.Eventually(t, "each probe is counted", panics(7))
	testkit.Eventually(t, "six of thirteen are answered", func() bool { // the counts of a batch are not published at once
		st := s.Stats()
		return st.Outcomes["error_mismatch"] == 6 && st.Received == 13
	})
	if lines := faults(&log); len(lines) != 1 || lines[0]["head"] != "4645525259505242"+strings.Repeat("0", 2*(checkLen-8)) {
		t.Errorf("the log has %v", lines)
	}
	ahead.Store(faultLogMillis)
	faulty.Write(probe)
	faulty.Write(probe)
	testkit.Eventually(t, "two more are counted", panics(9))
	if lines := faults(&log); len(lines) != 2 {
		t.Errorf("a minute later the log has %d lines, want 2", len(lines))
	}
	stop()
}

func TestAllocs(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	ident := newIdentity(t)
	for _, c := range outcomeCases {
		t.Run(c.want.String()+"/"+c.name, func(t *testing.T) {
			s := newMatch(t, ident)
			from, pkt := c.make(s)
			w, ep := s.workers[workerOf(max(from, 0))], endpointAt(from)
			allocs := testing.AllocsPerRun(100, func() {
				w.handleDatagram(s.now, ep, pkt, c.truncated)
				w.out.reset()
				w.inbox.clear()
			})
			if allocs != 0 {
				t.Errorf("%v allocations per datagram", allocs)
			}
		})
	}
}

func (b *inbox) clear() {
	for q := range b.rings {
		b.rings[q].head.Store(b.rings[q].tail.Load())
		for i := range b.queued[q] {
			b.queued[q][i].Store(0)
		}
	}
}

func TestAllocsIPv6(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newMatch(t, newIdentity(t))
	const v6 = 8
	s.datagram(v6, signed(s.joiner1(), 6, s.joiner1().key))
	s.datagram(atHost, pingMessage(s.hostData().id)) // or little may go to it
	w, ep := s.workers[workerOf(v6)], endpoint.UDP(simAddrs[v6], 0, 0)
	s.shared.limits.Store(rates(table.NewQuota(1<<20, 1<<30), table.Quota{}))
	for name, pkt := range map[string][]byte{
		"relay": relayMessage(s.joiner1().id, s.hostData().id, 100), "ping": pingMessage(s.joiner1().id),
	} {
		allocs := testing.AllocsPerRun(100, func() {
			if o := w.handleDatagram(s.now, ep, pkt, false); o != outRelayed && o != outPong {
				t.Fatalf("%s: %v", name, o)
			}
			w.out.reset()
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations per datagram", name, allocs)
		}
	}
}

func TestAllocsCommit(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newMatch(t, newIdentity(t))
	s.control.out.deliver = func([]sessionDatagram) (r sock.SendResult) { return r }
	w := s.workers[workerOf(atJoiner1)]
	pkt, ep := signed(s.joiner1(), 6, s.joiner1().key), endpoint.UDP(simAddrs[atJoiner1], 0, 0)
	allocs := testing.AllocsPerRun(100, func() {
		w.handleDatagram(s.now, ep, pkt, false)
		s.control.runOnce(s.now)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per BIND", allocs)
	}
}

func BenchmarkStep(b *testing.B) {
	for _, c := range []struct {
		name string
		make func(s *sim) (int, []byte)
	}{
		{"RelayToHost", func(s *sim) (int, []byte) { return atJoiner1, relayMessage(s.joiner1().id, s.hostData().id, 112) }},
		{"RelayToJoiner", func(s *sim) (int, []byte) { return atHost, relayMessage(s.hostData().id, s.joiner1().id, 112) }},
		{"Ping", func(s *sim) (int, []byte) { return atJoiner1, pingMessage(s.joiner1().id) }},
		{"JunkBind", func(s *sim) (int, []byte) {
			pkt := signed(s.joiner1(), 6, s.joiner1().key)
			pkt[99] ^= 1
			return atJoiner1, pkt
		}},
		{"WrongMAC", func(s *sim) (int, []byte) { return atJoiner1, signed(s.joiner1(), 6, s.hostData().key) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newMatch(b, newIdentity(b))
			generous := table.NewQuota(1<<30, 1<<40) // metered, but never refused
			s.shared.limits.Store(rates(generous, generous))
			s.datagram(atHost, pingMessage(s.hostData().id)) // or little may go to it
			from, pkt := c.make(s)
			w, ep := s.workers[workerOf(max(from, 0))], endpointAt(from)
			b.ReportAllocs()
			for b.Loop() {
				w.count(w.handleDatagram(s.now, ep, pkt, false), len(pkt))
				w.out.reset()
			}
			if sent := w.counts.outcomes[outRelayed]; sent == 0 && strings.HasPrefix(c.name, "Relay") {
				b.Error("nothing was relayed")
			}
		})
	}
}

func BenchmarkAdmission(b *testing.B) {
	s := newMatch(b, newIdentity(b))
	s.control.out.deliver = func([]sessionDatagram) (r sock.SendResult) { return r }
	w := s.workers[workerOf(atJoiner1)]
	ep := endpoint.UDP(simAddrs[atJoiner1], 0, 0)
	pkt := signed(s.joiner1(), 6, s.joiner1().key)
	b.Run("SameEndpoint", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.handleDatagram(s.now, ep, pkt, false)
			s.control.runOnce(s.now)
		}
	})
	b.Run("WorkerPart", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.handleDatagram(s.now, ep, pkt, false)
			w.inbox.clear()
		}
	})
}

// rates returns limits with the quotas of joiners and hosts, and 1 MiB for an
// endpoint whose path is not validated.
func rates(joiner, host table.Quota) *limitRates {
	return &limitRates{quotas: [4]table.Quota{table.RoleJoiner: joiner, table.RoleHost: host}, unvalidated: 1 << 20}
}
