package websocket

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

func newQueue(messages, bytes int) *queue {
	return &queue{maxMessages: messages, maxBytes: bytes, patience: time.Hour}
}

// TestQueueModel: over random sequences, what comes out is what went in, in
// order, within both bounds.
func TestQueueModel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		q := newQueue(40, 20_000)
		var model [][]byte
		var held int
		room := make([]byte, MaxMessage)
		for step := range 3000 {
			switch {
			case rng.IntN(100) == 0:
				q.trim()
			case rng.IntN(10) < 4+step/1000:
				pkt := bytes.Repeat([]byte{byte(step)}, rng.IntN(MaxMessage+1))
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

// TestQueueLast: the last message finds room in a full queue, comes last, and
// nothing follows it.
func TestQueueLast(t *testing.T) {
	q := newQueue(1, 2000)
	last := proto.Error{Code: proto.ErrorTimeout}.Append(nil)
	room := make([]byte, MaxMessage)
	q.push([]byte("a"))
	if got := q.push([]byte("b")); got != pushFull {
		t.Fatalf("a message too many: %v", got)
	}
	if !q.pushLast(last) || q.pushLast(last) {
		t.Fatal("the last message is not taken, or taken twice")
	}
	if got := q.push([]byte("c")); got != pushClosed || q.left() != 2 {
		t.Fatalf("after the last: %v, %d left", got, q.left())
	}
	for _, want := range []string{"a", string(last)} {
		if msg, ok := q.pop(room); !ok || string(msg) != want {
			t.Fatalf("popped %q, %v, want %q", msg, ok, want)
		}
	}
	if msg, ok := q.pop(room); ok || q.left() != 0 {
		t.Fatalf("popped %q from an empty queue", msg)
	}
}

// TestQueueStuck: a queue that overflowed and was not empty for too long is
// told from a burst.
func TestQueueStuck(t *testing.T) {
	q := newQueue(2, 2000)
	q.patience = -1 // Any time is too long.
	room := make([]byte, MaxMessage)
	q.push(nil)
	q.push(nil)
	if got := q.push(nil); got != pushStuck {
		t.Errorf("got %v", got)
	}
	q.patience = time.Hour
	if got := q.push(nil); got != pushFull {
		t.Errorf("got %v", got)
	}
	q.pop(room)
	if q.push(nil); q.crowded.IsZero() {
		t.Error("crowded no more, though it never was empty")
	}
	q.pop(room)
	q.pop(room)
	if !q.crowded.IsZero() {
		t.Error("crowded, though it was empty")
	}
}

// TestQueueTrim: a burst does not cost memory for ever.
func TestQueueTrim(t *testing.T) {
	q := newQueue(100, 64<<10)
	room := make([]byte, MaxMessage)
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
	if grown < 40_000 || len(q.ring) != ringStart {
		t.Errorf("%d bytes at first, %d later", grown, len(q.ring))
	}
}
