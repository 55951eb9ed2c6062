//go:build linux && amd64 && !sockportable

package program

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// BenchmarkProgram is the time of the program for a RELAY of 150 bytes between random pairs, as
// the kernel measures it for one run (about 20 ns of that are the measurement), with so many
// allocations. It reports the median: a run that an interrupt prolongs does not count.
func BenchmarkProgram(b *testing.B) {
	testkit.NeedRoot(b, "loading a program into the kernel")
	for _, native := range []bool{false, true} {
		for _, allocations := range []int{1000, 64_000, 1_000_000} {
			b.Run(fmt.Sprintf("native=%t/allocations=%d", native, allocations), func(b *testing.B) {
				p, err := Load(Parameters{Allocations: allocations, Listeners: 1, MaxMessage: 1438, Native: native})
				if err != nil {
					b.Fatal(err)
				}
				defer p.Close()
				frames := relayFrames(b, p, allocations)
				var all []time.Duration
				for i := 0; b.Loop(); i++ {
					frame := frames[i%len(frames)]
					verdict, took, err := p.entry.Benchmark(frame, 1, nil)
					if err != nil || verdict != actRedirect && verdict != xdpTX {
						b.Fatalf("verdict %d, %v", verdict, err)
					}
					all = append(all, took)
				}
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2]), "ns-median")
				b.ReportMetric(float64(all[len(all)/10]), "ns-p10")
			})
		}
	}
}

func relayFrames(b *testing.B, p *Program, allocations int) (frames [][]byte) {
	b.Helper()
	relay := netip.MustParseAddrPort("192.0.2.1:7777")
	p.SetLocalAddr(0, 0, relay, 1, [6]byte{})
	p.SetEgress(1, 1, 1500, [6]byte{2}, true)
	p.SetNextHop(1, [6]byte{4}, 1)
	p.SetOn(true)
	tab := table.NewTableIn(p.Memory(), allocations)
	bind := func(role table.Role, n int) (table.Handle, proto.AllocationID, netip.AddrPort) {
		var id proto.AllocationID
		binary.LittleEndian.PutUint64(id[:], rand.Uint64())
		binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
		h, err := tab.Reserve(table.Spec{ID: id, Role: role, MaxConnections: 1, CounterIndex: 1}, 1)
		if err != nil {
			b.Fatal(err)
		}
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 4000)
		tab.Bind(h, endpoint.UDP(at, 0, 0))
		tab.BeginPath(h, table.ValidatedPath)
		tab.SetNextHop(h, 1)
		tab.Activity(h).RecordHeard(1 << 30) // for as long as this takes
		return h, id, at
	}
	type pair struct {
		from netip.AddrPort
		pkt  []byte
	}
	var pairs []pair
	for n := 0; n < allocations; n += 2 {
		host, hostID, _ := bind(table.RoleHost, n)
		joiner, id, at := bind(table.RoleJoiner, n+1)
		tab.Link(joiner, host)
		pairs = append(pairs, pair{at, proto.Relay{From: id, To: hostID, Payload: make([]byte, 112)}.Append(nil)})
	}
	for range min(100_000, 4*len(pairs)) {
		c := pairs[rand.IntN(len(pairs))]
		frame := append(make([]byte, 12), 8, 0, 0x45, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(28+len(c.pkt)))
		frame = append(frame, 0, 0, 0, 0, 64, 17, 0, 0)
		frame = append(append(frame, c.from.Addr().AsSlice()...), relay.Addr().AsSlice()...)
		var sum uint32
		for i := 14; i < 34; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(frame[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(frame[24:], ^uint16(sum>>16+sum))
		frame = binary.BigEndian.AppendUint16(frame, c.from.Port())
		frame = binary.BigEndian.AppendUint16(frame, relay.Port())
		frame = binary.BigEndian.AppendUint16(frame, uint16(8+len(c.pkt)))
		frame = append(append(frame, 1, 1), c.pkt...) // any checksum but 0
		frames = append(frames, frame)
	}
	return frames
}
