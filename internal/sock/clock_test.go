package sock

import "testing"

func TestNow(t *testing.T) {
	last := Now()
	if last < 0 {
		t.Fatalf("Now() = %d", last)
	}
	for range 1000 {
		now := Now()
		if now < last {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}
	if n := testing.AllocsPerRun(100, func() { last = Now() }); n != 0 {
		t.Errorf("Now allocates %v times", n)
	}
}
