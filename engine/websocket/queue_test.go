package websocket

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

func newQueue(messages, bytes int) *queue {
	return &queue{maxMessages: messages, maxBytes: bytes, stuckAfter: time.Hour}
}

func TestQueueModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		q := newQueue(40, 20_000)
		var model [][]byte
		var held int
		room := make([]byte, maxMessage)
		for step := range 3000 {
			switch {
			case rng.IntN(100) == 0:
				q.trim()
			case rng.IntN(10) < 4+step/1000:
				pkt := bytes.Repeat([]byte{byte(step)}, rng.IntN(maxMessage+1))
				fits := len(model) < 40 && held+lengthSize+len(pkt) <= 20_000
				want := pushFull
				if fits && len(model) == 0 {
					want = pushFirst
				} else if fits {
					want = pushQueued
				}
				if got := q.push(pkt); got != want {
					t.Fatalf("seed %d, step %d: push %v, want %v", seed, step, got, want)
				}
				if fits {
					model, held = append(model, pkt), held+lengthSize+len(pkt)
				}
			default:
				msg, ok := q.pop(room)
				if ok != (len(model) > 0) || ok && !bytes.Equal(msg, model[0]) {
					t.Fatalf("seed %d, step %d: popped %x, %v", seed, step, msg, ok)
				}
				if ok {
					model, held = model[1:], held-lengthSize-len(msg)
				}
			}
		}
	}
}

// TestQueueFinal: the final message has room in a full queue, is popped last, and closes it.
func TestQueueFinal(t *testing.T) {
	t.Parallel()
	q := newQueue(1, 2000)
	final := proto.Error{Code: proto.ErrorTimeout}.Append(nil)
	room := make([]byte, maxMessage)
	q.push([]byte("a"))
	if got := q.push([]byte("b")); got != pushFull {
		t.Fatalf("a message above the limit: %v", got)
	}
	if !q.pushFinal(final) || q.pushFinal(final) {
		t.Fatal("the final message is not accepted, or accepted twice")
	}
	if got := q.push([]byte("c")); got != pushClosed || q.len() != 2 {
		t.Fatalf("after the final message: %v, %d queued", got, q.len())
	}
	for _, want := range []string{"a", string(final)} {
		if msg, ok := q.pop(room); !ok || string(msg) != want {
			t.Fatalf("popped %q, %v, want %q", msg, ok, want)
		}
	}
	if msg, ok := q.pop(room); ok || q.len() != 0 {
		t.Fatalf("popped %q from an empty queue", msg)
	}
}

// TestQueueStuck: a queue that overflowed and was not empty since for stuckAfter
// is stuck; a shorter overflow is a burst.
func TestQueueStuck(t *testing.T) {
	t.Parallel()
	q := newQueue(2, 2000)
	q.stuckAfter = -1 // Every overflow is too long.
	room := make([]byte, maxMessage)
	q.push(nil)
	q.push(nil)
	if got := q.push(nil); got != pushStuck {
		t.Errorf("got %v", got)
	}
	q.stuckAfter = time.Hour
	if got := q.push(nil); got != pushFull {
		t.Errorf("got %v", got)
	}
	q.pop(room)
	if q.push(nil); q.fullSince.IsZero() {
		t.Error("fullSince is reset, though the queue was never empty")
	}
	q.pop(room)
	q.pop(room)
	if !q.fullSince.IsZero() {
		t.Error("fullSince is set, though the queue was empty")
	}
}

func TestQueueTrim(t *testing.T) {
	t.Parallel()
	q := newQueue(100, 64<<10)
	room := make([]byte, maxMessage)
	for range 40 {
		q.push(make([]byte, 1000))
	}
	grown := len(q.ring)
	for range 40 {
		q.pop(room)
	}
	for range 10 {
		q.trim()
	}
	if grown < 40_000 || len(q.ring) != minRing {
		t.Errorf("%d bytes at first, %d later", grown, len(q.ring))
	}
}
