package godot

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// match is a joiner in Godot and a host in Go that sends back what it gets.
type match struct {
	*relay
	g     *clienttest.Program
	host  *clienttest.HostSession
	begin time.Time // of the situation
}

func newMatch(t *testing.T) *match {
	t.Helper()
	m := &match{relay: serve(t, "127.0.0.1")}
	m.host = m.relay.host()
	m.g = m.player(m.host.Code)
	return m
}

// expectAfter expects a line, not before a time has passed since the situation began.
func (m *match) expectAfter(want string, least time.Duration) {
	m.t.Helper()
	m.g.Expect(want)
	took := time.Since(m.begin)
	m.t.Logf("%q after %v", want, took.Round(10*time.Millisecond))
	if took < least {
		m.t.Errorf("%q after %v, want %v", want, took, least)
	}
}

// goesOn expects that the match goes on and that the game is told nothing but that.
func (m *match) goesOn(besides ...string) {
	m.t.Helper()
	begin := time.Now()
	m.g.Reach("after", besides...)
	m.t.Logf("an answer after %v", time.Since(begin).Round(time.Millisecond))
}

// TestSituations is what a game over FerrySession is told in each situation, and after how long.
func TestSituations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(m *match)
	}{
		{"idle 12 s", func(m *match) {
			time.Sleep(12 * time.Second)
			m.goesOn()
		}},
		{"new address", func(m *match) { // as behind a NAT
			m.gate.Move()
			m.goesOn()
		}},
		{"new network", func(m *match) { // The old address leads nowhere.
			m.gate.MoveNetwork()
			m.expectAfter(silent, 2*time.Second)
			m.expectAfter(resumed, 2*time.Second)
			m.goesOn()
		}},
		{"host leaves", func(m *match) {
			if err := m.host.Close(); err != nil {
				m.t.Fatal(err)
			}
			m.expectAfter("left peer -1", 0)
			m.g.Do("connect")
			m.g.Expect("connect 0")
			m.expectAfter("refused nobody 4 the allocation has ended or never was (ERROR 4)", 0)
		}},
		{"relay stopped 3 s", func(m *match) {
			m.Signal(syscall.SIGSTOP)
			time.Sleep(3 * time.Second)
			m.Signal(syscall.SIGCONT)
			m.goesOn(silent, resumed)
		}},
		{"relay stopped until the game is told", func(m *match) {
			m.Signal(syscall.SIGSTOP)
			m.expectAfter(silent, 2*time.Second)
			if *long {
				time.Sleep(time.Until(m.begin.Add(15 * time.Second)))
			}
			m.Signal(syscall.SIGCONT)
			m.expectAfter(resumed, 2*time.Second)
			m.goesOn()
		}},
		{"relay killed", func(m *match) {
			needLong(m.t)
			m.Crash()
			m.expectAfter(silent, 2*time.Second)
			m.expectAfter("ended nobody -3 the relay does not answer", 62*time.Second)
			m.g.Do("send more")
			m.g.Expect("not sent")
		}},
		{"relay restarted", func(m *match) {
			m.Crash()
			m.restart()
			m.goesOn(silent, resumed)
		}},
		{"flood", testFlood},
		{"loss 20 %", func(m *match) {
			random := rand.New(rand.NewPCG(1, 2))
			m.gate.Drop(func(netip.AddrPort, proto.Type) bool { return random.IntN(5) == 0 }) // The gate has a lock.
			stop := m.g.Repeat("send more")
			lasts := 5 * time.Second
			if *long {
				lasts = 20 * time.Second
			}
			for end := time.Now().Add(lasts); time.Now().Before(end); {
				m.goesOn()
			}
			stop()
		}},
		{"link dropped", func(m *match) {
			m.dropLink()
			m.goesOn()
		}},
		{"link dropped, silence", func(m *match) {
			m.dropLink(proto.TypeConnectRequest)
			stop := m.g.Repeat("send more")
			m.expectAfter("lost peer -3 the relay does not answer", 5*time.Second)
			stop()
			if n := m.gate.Requests(); n < 2 || n > 6 {
				m.t.Errorf("%d requests in 5 s", n)
			}
		}},
		{"link dropped, refused", func(m *match) {
			m.gate.DropTypes(proto.TypeDisconnect)
			if err := m.host.Close(); err != nil {
				m.t.Fatal(err)
			}
			stop := m.g.Repeat("send more")
			defer stop()
			m.expectAfter("lost peer 4 the allocation has ended or never was (ERROR 4)", 0)
		}},
		{"own allocation ended", func(m *match) {
			m.gate.EndAllocation()
			m.expectAfter("ended nobody 4 the allocation has ended or never was (ERROR 4)", 0)
			m.g.Do("connect")
			m.g.Expect("connect 2") // ERR_UNAVAILABLE
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMatch(t)
			m.g.Reach("before")
			m.begin = time.Now()
			c.do(m)
		})
	}
}

// dropLink ends the link without the player's knowledge. Messages of these types are lost besides.
func (m *match) dropLink(lost ...proto.Type) {
	m.t.Helper()
	m.gate.DropTypes(append(lost, proto.TypeDisconnect)...)
	if err := (<-m.host.Peers).Close(); err != nil {
		m.t.Fatal(err)
	}
}

// testFlood: a host that floods takes a bounded part of each frame, and of memory; the rest is lost.
func testFlood(m *match) {
	stop := m.host.Flood()
	m.g.Do("flood 5000")
	line := m.g.Expect("flood")
	stop()
	var all, most, longest, frames, memory int
	if _, err := fmt.Sscan(line, &all, &most, &longest, &frames, &memory); err != nil {
		m.t.Fatalf("%q: %v", line, err)
	}
	m.t.Logf("%d messages in %d frames, at most %d in one, whose poll took %d µs; %d bytes of memory", all, frames, most, longest, memory)
	if most > 256 || memory > 1<<20 {
		m.t.Errorf("%d messages in a frame, %d bytes of memory", most, memory)
	}
	m.goesOn()
}

// TestHostKilled: a joiner in Godot is told that a host in Godot has crashed.
func TestHostKilled(t *testing.T) {
	needLong(t)
	t.Parallel()
	r := serve(t, "127.0.0.1")
	host, code := r.godotHost()
	m := &match{relay: r, g: r.player(code)}
	m.g.Do("send hello")
	host.Expect("joined peer")
	m.begin = time.Now()
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	stop := m.g.Repeat("send more")
	defer stop()
	m.expectAfter("lost peer 4 the allocation has ended or never was (ERROR 4)", 5*time.Second)
}

// TestNewAddress: the machine of a player gets another IP address, and the match goes on. It runs in a
// network namespace of its own.
func TestNewAddress(t *testing.T) {
	t.Parallel()
	build(t)
	if !testkit.InNamespace(t) {
		return
	}
	var m *match
	clienttest.ChangeAddress(t, func() {
		m = newMatch(t)
		m.g.Reach("before")
	}, func() { m.goesOn("not sent 1", silent, resumed) })
}
