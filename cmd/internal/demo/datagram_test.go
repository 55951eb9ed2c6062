package demo

import (
	"math/big"
	"testing"
)

func TestDatagram(t *testing.T) {
	var b [size]byte
	for _, d := range []datagram{{fromPlayer, 0, 0}, {echo, 1 << 31, 1 << 60}, {fromHost, 255, -1}} {
		d.put(&b)
		if got, ok := parse(b[:]); !ok || got != d {
			t.Errorf("%+v, %v, want %+v", got, ok, d)
		}
		for i := 16; i < size; i++ {
			b[i] ^= 1
			if _, ok := parse(b[:]); ok {
				t.Errorf("the change of byte %d was not detected", i)
			}
			b[i] ^= 1
		}
		for _, n := range []int{0, size - 1} {
			if _, ok := parse(b[:n]); ok {
				t.Errorf("%d bytes were taken", n)
			}
		}
		if _, ok := parse(append(b[:], 0)); ok {
			t.Error("a byte too many was taken")
		}
	}
}

func TestTally(t *testing.T) {
	var c tally
	var s big.Int
	c.sent.Store(130)
	for _, number := range []uint32{129, 0, 64, 63, 64, 130, 1 << 31, 129} {
		c.count(&s, number, 130)
	}
	if got, want := c.direction(), (Direction{Sent: 130, Received: 4, Lost: 126, Duplicates: 2, Strange: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if c.settled() {
		t.Error("settled with 126 missing")
	}
	for number := range uint32(130) {
		c.count(&s, number, 130)
	}
	if !c.settled() || c.direction().Lost != 0 {
		t.Errorf("%+v", c.direction())
	}
}
