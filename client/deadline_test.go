package client

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDeadline()
		defer d.stop()
		if isClosed(d.done()) {
			t.Fatal("no deadline, but it has passed")
		}
		d.set(time.Now().Add(-time.Hour))
		old := d.done()
		if !isClosed(old) {
			t.Fatal("a deadline in the past has not passed")
		}
		d.set(time.Now().Add(time.Hour))
		if isClosed(d.done()) {
			t.Fatal("a deadline in an hour has passed")
		}
		d.fire()
		if isClosed(d.done()) {
			t.Fatal("a timer that came too late ended a deadline that was moved")
		}
		d.set(time.Now().Add(time.Millisecond))
		select {
		case <-d.done():
		case <-time.After(time.Second):
			t.Fatal("the timer does not end the deadline")
		}
		d.set(time.Time{})
		if isClosed(d.done()) {
			t.Fatal("a deadline that was removed has passed")
		}
		d.fire()
		if isClosed(d.done()) {
			t.Fatal("a timer that came too late ended a deadline that was removed")
		}
		d.set(time.Now().Add(time.Millisecond).Round(0))
		select {
		case <-d.done():
		case <-time.After(time.Second):
			t.Fatal("a wall-clock deadline does not end")
		}
	})
}
