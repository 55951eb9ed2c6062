package netcode_test

import (
	"runtime"
	"testing"
)

// BenchmarkPlayer is what one tick costs per connected player, both sides and
// the network in memory together: a command of 40 bytes up, a snapshot of 600
// bytes down.
func BenchmarkPlayer(b *testing.B) {
	const peers = 100
	bed := newInGameNetwork(b, peers)
	payload := make([]byte, 600)
	tick := uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		tick++
		bed.play(tick, payload)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*peers), "ns/player/tick")
}

// BenchmarkMemory is what a connection takes, both sides and the network in
// memory together, after a second of play.
func BenchmarkMemory(b *testing.B) {
	const peers = 200
	payload := make([]byte, 600)
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		bed := newInGameNetwork(b, peers)
		for tick := range uint32(30) {
			bed.play(tick, payload)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/peers, "B/connection")
		runtime.KeepAlive(bed)
	}
}
