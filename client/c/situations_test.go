package c

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// gate carries datagrams between one player and a relay, which may stop, and loses some.
type gate struct {
	player, relay *net.UDPConn
	at            atomic.Pointer[netip.AddrPort] // of the player
	stopped       atomic.Bool
	loss          atomic.Uint32 // percent, each way
}

func newGate(t *testing.T, relay netip.AddrPort) *gate {
	t.Helper()
	player, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{player: player}
	if g.relay, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(relay)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.player.Close(); _ = g.relay.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := g.player.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			g.at.Store(&from)
			if g.passes() {
				_, _ = g.relay.Write(buf[:n])
			}
		}
	}()
	go func() {
		buf := make([]byte, 1500)
		for {
			n, err := g.relay.Read(buf)
			if err != nil {
				return
			}
			if to := g.at.Load(); to != nil && g.passes() {
				_, _ = g.player.WriteToUDPAddrPort(buf[:n], *to)
			}
		}
	}()
	return g
}

func (g *gate) passes() bool { return !g.stopped.Load() && rand.Uint32N(100) >= g.loss.Load() }

// TestSituations is what a joiner in C is told in each situation, of which TestPlay has others.
func TestSituations(t *testing.T) {
	t.Parallel()
	configs := map[string]engine.Config{
		// The clock of a relay that is stopped stands still.
		"relay stopped 15 s": {Timeouts: engine.Timeouts{Idle: time.Minute, Receive: time.Minute}},
		"host killed":        {Timeouts: engine.Timeouts{Idle: 3 * time.Second, Receive: 5 * time.Second}},
	}
	testkit.Input(t, "ferry_relay.h", "ferry_relay.c", "example.c")
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), testkit.Program(t, "gcc", "gcc"), "-std=c99", "-O2", "-o", program, "example.c",
		"ferry_relay.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for name, do := range map[string]func(m *match){
		"idle 12 s": func(m *match) {
			time.Sleep(12 * time.Second)
			m.talk("after")
		},
		"relay stopped 3 s": func(m *match) {
			m.gate.stopped.Store(true)
			time.Sleep(3 * time.Second)
			m.gate.stopped.Store(false)
			m.talk("after")
		},
		"relay stopped 15 s": func(m *match) {
			m.gate.stopped.Store(true)
			m.joiner.await("silent -1 ")
			time.Sleep(12 * time.Second)
			m.gate.stopped.Store(false)
			m.joiner.await("bound -1 ")
			m.talk("after")
		},
		"host killed": func(m *match) {
			_ = m.host.cmd.Process.Kill()
			stop := m.joiner.repeat("more")
			defer stop()
			m.joiner.await("lost 4 ")
		},
		"loss 20 %": func(m *match) {
			m.gate.loss.Store(20)
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
			m.host.expect("bound -1 ")
			joiner := relay.Joiner("bob", reserved.ID)
			m.gate = newGate(t, relay.Credentials(joiner).Relay)
			m.joiner = play(t, program, relay, joiner, false, m.gate)
			m.joiner.await("connected -1 ")
			m.talk("before")
			began := time.Now()
			do(m)
			t.Logf("after %v", time.Since(began).Round(10*time.Millisecond))
		})
	}
}

// match is a joiner, behind a gate, and its host.
type match struct {
	gate         *gate
	host, joiner *player
}

// talk sends a line to the host until it comes, and one back.
func (m *match) talk(what string) {
	m.joiner.t.Helper()
	stop := m.joiner.repeat(what)
	m.host.await("message -1 " + what)
	stop()
	stop = m.host.repeat(what)
	m.joiner.await("message -1 " + what)
	stop()
}

// repeat writes a line each 200 ms until stop is called.
func (p *player) repeat(line string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			_, _ = p.stdin.Write([]byte(line + "\n"))
			select {
			case <-tick.C:
			case <-done:
				tick.Stop()
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// await waits for a line among others.
func (p *player) await(want string) {
	p.t.Helper()
	limit := time.After(testkit.WaitLimit)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("it ended and did not print %q: %v", want, p.cmd.Wait())
			}
			if line == want {
				return
			}
		case <-limit:
			p.t.Fatalf("it does not print %q", want)
		}
	}
}
