package main

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// TestMain is also the processes of a relay and of players.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"relay", "players"}, os.Args[1]) {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTransports sends messages over each transport.
func TestTransports(t *testing.T) {
	for _, kind := range []string{"udp", "wss", "wt", "wt-batch", "wt-udpconn", "quic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, _, _, err := startPair(options{size: 100, procs: 2}, kind, 2, true)
			if err != nil {
				t.Fatal(err)
			}
			defer p.stop()
			var f playerFigures
			if err := p.players.ask("burst 8", &f, time.Minute); err != nil || f.Sent != 8 {
				t.Fatalf("%d of 8 messages were sent: %v", f.Sent, err)
			}
			for began := time.Now(); f.Received < 8; time.Sleep(10 * time.Millisecond) {
				if err := p.players.ask("figures", &f, time.Minute); err != nil || time.Since(began) > time.Minute {
					t.Fatalf("%d of 8 messages arrived: %v", f.Received, err)
				}
			}
		})
	}
}

// TestRing drops the oldest messages, by number and by bytes, and keeps the others in order.
func TestRing(t *testing.T) {
	for _, size := range []int{4, 138, 1438} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const n = 1000
			var r ring
			dropped, buf := 0, make([]byte, 1500)
			for i := range n {
				pkt := make([]byte, size)
				pkt[0], pkt[1] = byte(i>>8), byte(i)
				dropped += r.push(pkt)
			}
			if keep := min(ringMessages, ringBytes/(size+2)); n-dropped != keep {
				t.Fatalf("%d messages were kept, want %d", n-dropped, keep)
			}
			for i := dropped; i < n; i++ {
				if got := r.pop(buf); got != size || int(buf[0])<<8|int(buf[1]) != i {
					t.Fatalf("message %d: size %d, number %d", i, got, int(buf[0])<<8|int(buf[1]))
				}
			}
			if r.pop(buf) != 0 {
				t.Error("the ring is not empty")
			}
		})
	}
}
