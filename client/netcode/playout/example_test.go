package playout_test

import (
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/playout"
)

// A server uses one command of a player per tick. The command of tick 12 is lost, and that of
// tick 14 comes before that of tick 13.
func ExampleCommandBuffer() {
	buffer := playout.NewCommandBuffer(10, 0)
	arrivals := map[uint32][]uint32{10: {10, 11}, 11: {}, 12: {14}, 13: {13}}
	for tick := uint32(10); tick < 15; tick++ {
		for _, command := range arrivals[tick] {
			buffer.Put(command, fmt.Append(nil, "command of ", command))
		}
		data, exact := buffer.Take(tick)
		fmt.Printf("tick %d: %s, exact %v\n", tick, data, exact)
	}
	// Output:
	// tick 10: command of 10, exact true
	// tick 11: command of 11, exact true
	// tick 12: command of 11, exact false
	// tick 13: command of 13, exact true
	// tick 14: command of 14, exact true
}

// A client receives a snapshot every 50 ms, up to 12 ms late, and shows 100 frames a second
// between them.
func ExampleClock() {
	clock, err := playout.NewClock(50*time.Millisecond, 0, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	start := time.Now()
	for frame := range 1000 {
		now := start.Add(time.Duration(frame) * 10 * time.Millisecond)
		if frame%5 == 0 {
			snapshot := uint32(frame / 5)
			late := time.Duration(snapshot%4) * 4 * time.Millisecond
			clock.Snapshot(snapshot, now.Add(late))
			now = now.Add(late)
		}
		tick, fraction, _ := clock.At(now)
		if frame > 995 {
			fmt.Printf("frame %d shows %.1f\n", frame, float64(tick)+fraction)
		}
	}
	st := clock.Stats()
	fmt.Printf("delay %v, %d frames held\n", st.Delay.Round(time.Millisecond), st.Held)
	// Output:
	// frame 996 shows 198.0
	// frame 997 shows 198.2
	// frame 998 shows 198.4
	// frame 999 shows 198.6
	// delay 62ms, 0 frames held
}
