package simulation_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/test/testkit/transcript"
)

// runTranscript runs the same game over a bad network, in front of which and
// behind which there is a tap.
func runTranscript(t *testing.T, seed uint64, p link.Conditions) (front, behind [32]byte, lines uint64) {
	t.Helper()
	w := new(link.Network)
	far, _ := w.Open(address.Addr{})
	bare, _ := w.Open(address.Addr{})
	inner := transcript.NewTap(bare)
	sim, err := simulation.New(inner, simulation.Config{Seed: seed, Out: p, In: p})
	if err != nil {
		t.Fatal(err)
	}
	b := &testNode{sim: sim, buf: make([]byte, link.MaxDatagram)}
	outer := transcript.NewTap(sim)
	for i := range 400 {
		outer.Advance(start.Add(time.Duration(i) * 16 * ms))
		for range 3 {
			_ = outer.Send(far.Local(), []byte{byte(i), byte(i >> 8), 3, 4, 5, 6, 7, 8})
			_ = far.Send(outer.Local(), []byte{1, 2, 3, byte(i), byte(i >> 8)})
		}
		outer.Flush()
		w.Step()
		b.drain(outer)
		b.drain(far)
	}
	return outer.Sum(), inner.Sum(), outer.Len()
}

// everything is all that can happen at once.
var everything = link.Conditions{
	Delay: 40 * ms, Jitter: 30 * ms, Loss: 5, LossEvery: 50, Duplicate: 5, Reorder: 5, Corrupt: 5,
}

func TestSameSeedSameTranscript(t *testing.T) {
	front, behind, lines := runTranscript(t, 7, everything)
	again, behindAgain, _ := runTranscript(t, 7, everything)
	if front != again || behind != behindAgain {
		t.Error("the same seed gives two transcripts")
	}
	other, behindOther, _ := runTranscript(t, 8, everything)
	if front == other || behind == behindOther {
		t.Error("two seeds give the same transcript")
	}
	if lines < 400*4 {
		t.Errorf("%d lines are no transcript", lines)
	}
}

// TestTraces: a seed means the same on every machine and with every version of
// Go. The hashes were stored when each parameter had passed its own test.
func TestTraces(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"off", "8fccd86cc357 8fccd86cc357"},
		{"delay=50ms", "a48681cd5ada 837a2f43d28f"},
		{"delay=50ms,jitter=40ms", "d7e06d5aa094 2706b0e10477"},
		{"jitter=20ms,ordered=true", "e29fb18f7769 1a37d0825f03"},
		{"loss=10", "c8b9627e9dbb 29b99c0a703c"},
		{"loss-every=5", "63e32f760a04 7ccc31fcff8a"},
		{"duplicate=10", "010255f7584c 16861cfdcc75"},
		{"reorder=10", "91e4375e64bb f819c57c95f3"},
		{"reorder=10,reorder-by=100ms", "2096943a5e98 f0f73b2d4031"},
		{"corrupt=10", "138acefe9409 80aab45c8513"},
		{"corrupt=10,corrupt-from=4", "c3457f7b1ae8 067af07d9ab6"},
		{"mtu=6", "8fccd86cc357 fc93be3e6d0b"},
		{"4g+regional-median", "3b8eb9d6dfd7 8c00f9003845"},
		{"unplayable,duplicate=5,mtu=40", "81e4d366934f 5a248260a018"},
	} {
		var p link.Conditions
		if err := p.UnmarshalText([]byte(c.text)); err != nil {
			t.Fatal(err)
		}
		front, behind, _ := runTranscript(t, 1, p)
		if got := fmt.Sprintf("%x %x", front[:6], behind[:6]); got != c.want {
			t.Errorf("{%q, %q},", c.text, got)
		}
	}
}

// TestLuckIsIndependent: what is lost does not change the jitter of the rest,
// and one direction does not change the other.
func TestLuckIsIndependent(t *testing.T) {
	run := func(out, in link.Conditions) []arrival {
		b := newTestNode(t, simulation.Config{Seed: 3, Out: out, In: in}, false)
		b.through(t, 100, true)
		b.ticks = 0
		return b.through(t, 300, false)
	}
	jitter := link.Conditions{Delay: 20 * ms, Jitter: 10 * ms}
	lossy := jitter
	lossy.Loss = 20
	whole := run(jitter, link.Conditions{})
	part := run(lossy, link.Conditions{Loss: 50})
	if len(part) == len(whole) {
		t.Fatal("nothing was lost")
	}
	for _, a := range part {
		if !slices.Contains(whole, a) {
			t.Fatalf("%d came at another time when others were lost", a.number)
		}
	}
}
