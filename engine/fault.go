package engine

import (
	"encoding/hex"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
)

// faultLogMillis is the shortest time between two log lines about faults of
// ours, so that whoever finds a way to cause them cannot fill a disk.
const faultLogMillis = 60_000

// faultHead is how much of the datagram the line shows, in bytes.
const faultHead = 64

// faults is where workers report panics. Any goroutine may use it.
type faults struct {
	log  *slog.Logger
	last atomic.Int64 // ms; of the last line
}

// panicked counts a datagram on which step panicked, and writes about it.
func (w *worker) panicked(now int64, pkt []byte, fault any) {
	w.count(DropPanic, len(pkt))
	last := w.shared.faults.last.Load()
	if last != 0 && now-last < faultLogMillis || !w.shared.faults.last.CompareAndSwap(last, now) {
		return
	}
	head := pkt[:min(len(pkt), faultHead)]
	w.shared.faults.log.Error("a datagram was dropped because of a fault in the relay, please report it",
		"fault", fault, "size", len(pkt), "head", hex.EncodeToString(head), "stack", string(debug.Stack()))
}
