package engine

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/sock"
)

// TestPublish: a worker publishes its counts once a millisecond, and the rest when
// publish is called.
func TestPublish(t *testing.T) {
	r := newRig(t, Config{})
	w := r.workers[0]
	for i, c := range []struct {
		at   int64
		want uint64 // batches that others see
	}{{r.now, 1}, {r.now, 1}, {r.now, 1}, {r.now + 1, 4}, {r.now + 1, 4}, {r.now + 7, 6}} {
		w.count(DropShort, 3)
		w.finishBatch(c.at, 1, sock.SendResult{})
		pub := &w.counts.pub
		if got := pub.batches[0].Load(); got != c.want || pub.received.Load() != c.want || pub.receivedBytes.Load() != 3*c.want {
			t.Errorf("after batch %d: %d batches, %d datagrams are published, want %d", i+1, got, pub.received.Load(), c.want)
		}
		if got := pub.outcomes[DropShort].Load(); got != c.want {
			t.Errorf("after batch %d: %d drops are published, want %d", i+1, got, c.want)
		}
	}
	w.count(DropShort, 3)
	w.finishBatch(r.now+7, 1, sock.SendResult{})
	w.publish()
	if got := w.counts.pub.outcomes[DropShort].Load(); got != 7 {
		t.Errorf("%d drops are published in the end, want 7", got)
	}
}
