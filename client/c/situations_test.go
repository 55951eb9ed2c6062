package c

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestSituations is what a joiner in C is told in each situation, of which TestPlay has others.
func TestSituations(t *testing.T) {
	t.Parallel()
	configs := map[string]engine.Config{
		// The clock of a relay that is stopped stands still.
		"relay stopped until the joiner is told": {Timeouts: engine.Timeouts{Idle: time.Minute, Receive: time.Minute}},
		"host killed":                            {Timeouts: engine.Timeouts{Idle: 3 * time.Second, Receive: 5 * time.Second}},
	}
	program := sanitized(t, testkit.Program(t, "gcc", "gcc"), "example.c")
	all := func(netip.AddrPort, proto.Type) bool { return true }
	for name, do := range map[string]func(m *match){
		"idle 12 s": func(m *match) {
			time.Sleep(12 * time.Second)
			m.talk("after")
		},
		"relay stopped 3 s": func(m *match) {
			m.gate.Drop(all)
			time.Sleep(3 * time.Second)
			m.gate.Drop(nil)
			m.talk("after")
		},
		"relay stopped until the joiner is told": func(m *match) {
			m.gate.Drop(all)
			m.joiner.Await("silent -1")
			if *long {
				time.Sleep(12 * time.Second)
			}
			m.gate.Drop(nil)
			m.joiner.Await("bound -1")
			m.talk("after")
		},
		"host killed": func(m *match) {
			_ = m.host.Process.Kill()
			stop := m.joiner.Repeat("more")
			defer stop()
			m.joiner.Await("lost 4")
		},
		"loss 20 %": func(m *match) {
			m.gate.Drop(func(netip.AddrPort, proto.Type) bool { return rand.IntN(5) == 0 })
			for range 5 {
				m.talk("after")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay := enginetest.Start(t, configs[name])
			reserved := relay.Host("alice", 2)
			m := &match{host: play(t, program, relay, reserved, true, nil)}
			m.host.Expect("bound -1")
			m.gate = clienttest.NewGate(t, "127.0.0.1")
			m.joiner = play(t, program, relay, relay.Joiner("bob", reserved.ID), false, m.gate)
			m.joiner.Await("connected -1")
			m.talk("before")
			began := time.Now()
			do(m)
			t.Logf("after %v", time.Since(began).Round(10*time.Millisecond))
		})
	}
}

type match struct {
	gate         *clienttest.Gate
	host, joiner *clienttest.Program
}

// talk sends a line to the host until it comes, and one back.
func (m *match) talk(what string) {
	m.joiner.T.Helper()
	stop := m.joiner.Repeat(what)
	m.host.Await("message -1 " + what)
	stop()
	stop = m.host.Repeat(what)
	m.joiner.Await("message -1 " + what)
	stop()
}
