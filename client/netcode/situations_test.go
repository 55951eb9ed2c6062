package netcode_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// situation is a client in game with a server that says something in each tick.
type situation struct {
	*testNetwork
	gate   *gate
	rpc    calls
	c      netcode.Conn
	client *netcode.Driver
	begin  time.Time
	quiet  bool // the server says nothing
	dead   bool // the server does nothing

	said, heard int
	unordered   bool
	events      []string // what the game gets, with the time since begin
}

// pass plays for a while.
func (s *situation) pass(d time.Duration) {
	s.t.Helper()
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(s.step)
		if !s.dead {
			if err := s.server.Update(s.now); err != nil {
				s.t.Fatal(err)
			}
			for conn := range s.server.Conns() {
				if !s.quiet && conn.SendRPC(s.rpc.say.New(fmt.Append(nil, s.said))) == nil {
					s.said++
				}
			}
			s.server.Flush()
		}
		if err := s.client.Update(s.now); err != nil {
			s.t.Fatal(err)
		}
		for _, text := range read(s.c, s.rpc.say) {
			s.unordered = s.unordered || text != fmt.Sprint(s.heard)
			s.heard++
		}
		for _, ev := range s.client.Events() {
			s.events = append(s.events, fmt.Sprintf("%.1fs %s", s.now.Sub(s.begin).Seconds(), ev))
		}
		s.client.Flush()
		s.net.Step()
	}
}

// TestSituations is which events a game over netcode gets in each situation, and after how long.
func TestSituations(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    netcode.Config
		do     func(s *situation)
		events []string
	}{
		{"idle 12 s", netcode.Config{}, func(s *situation) { s.quiet = true; s.pass(12 * time.Second); s.quiet = false }, nil},
		{"new address", netcode.Config{}, func(s *situation) { s.move() }, nil},
		{"new network, after a second without one", netcode.Config{}, func(s *situation) {
			s.gate.shutIn, s.gate.shutOut = true, true
			s.pass(time.Second)
			s.gate.shutIn, s.gate.shutOut = false, false
			s.move()
		}, nil},
		{"host killed", netcode.Config{}, func(s *situation) { s.dead = true }, []string{"2.0s 1 stalled", "30.0s 1 disconnected, timeout"}},
		{"host leaves", netcode.Config{}, func(s *situation) {
			s.dead = true
			if err := s.server.Close(); err != nil {
				s.t.Fatal(err)
			}
			s.net.Step()
		}, []string{"0.0s 1 disconnected, closed by remote (connection closed)"}},
		{"relay stopped 3 s", netcode.Config{}, func(s *situation) { s.stop(3 * time.Second) }, []string{"2.0s 1 stalled", "3.0s 1 resumed"}},
		{"relay stopped 15 s", netcode.Config{}, func(s *situation) { s.stop(15 * time.Second) }, []string{"2.0s 1 stalled", "15.0s 1 resumed"}},
		{"relay killed", netcode.Config{}, func(s *situation) { s.gate.shutIn, s.gate.shutOut = true, true },
			[]string{"2.0s 1 stalled", "30.0s 1 disconnected, timeout"}},
		{"flood", netcode.Config{}, func(s *situation) { s.flood() }, nil},
		{"loss 20 %", netcode.Config{Conditions: link.Conditions{Loss: 20, Delay: 30 * ms, Jitter: 10 * ms}},
			func(s *situation) { s.pass(time.Minute) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			rpc := newCalls(t)
			s := &situation{testNetwork: newTestNetwork(t, netcode.Config{RPCs: rpc.reg}), rpc: rpc}
			c.cfg.RPCs = rpc.reg
			s.gate, s.c = s.gated(c.cfg)
			s.client = s.clients[0]
			s.begin = s.now
			s.pass(2 * time.Second)
			if s.c.State() != netcode.StateConnected || s.heard < 20 {
				t.Fatalf("%v, %d RPCs", s.c.State(), s.heard)
			}
			s.begin, s.events = s.now, nil
			c.do(s)
			before := s.heard
			s.pass(35 * time.Second)
			if !slices.Equal(s.events, c.events) {
				t.Errorf("the game gets %q, want %q", s.events, c.events)
			}
			ends := len(c.events) > 0 && s.c.State() == netcode.StateDisconnected
			if s.unordered || (s.heard < before+1500) != ends {
				t.Errorf("%d RPCs, in order: %v", s.heard-before, !s.unordered)
			}
		})
	}
}

// move gives the client another address.
func (s *situation) move() {
	s.t.Helper()
	if err := s.net.Move(s.gate.Local(), link.NodeAddr(99)); err != nil {
		s.t.Fatal(err)
	}
}

// stop stops the network for a while.
func (s *situation) stop(d time.Duration) {
	s.gate.shutIn, s.gate.shutOut = true, true
	s.pass(d)
	s.gate.shutIn, s.gate.shutOut = false, false
}

// flood is a server that sends as much as it can for two seconds. An Update takes a bounded time and
// keeps a bounded number of messages, and memory does not grow.
func (s *situation) flood() {
	s.t.Helper()
	var before, after runtime.MemStats
	for i := range 100 {
		for conn := range s.server.Conns() {
			for range 10_000 {
				if conn.SendMessage([]byte("flood")) != nil {
					s.server.Flush()
				}
			}
		}
		s.pass(s.step)
		if n := len(slices.Collect(s.c.Messages())); n > 256 {
			s.t.Fatalf("%d messages in one Update", n)
		}
		switch i {
		case 20:
			runtime.GC()
			runtime.ReadMemStats(&before)
		case 99:
			runtime.GC()
			runtime.ReadMemStats(&after)
		}
	}
	if after.HeapAlloc > before.HeapAlloc+16<<20 {
		s.t.Errorf("the flood takes %d MB", (after.HeapAlloc-before.HeapAlloc)>>20)
	}
}
