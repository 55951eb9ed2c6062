package playout_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/client/netcode/playout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chance gives the tokens of connections, the same in each run.
type chance struct{ *rand.ChaCha8 }

// match is a server and a client in game, each with a rate and a clock of its own, over a simulated
// network whose time moves in steps of 1 ms.
type match struct {
	t              *testing.T
	net            *link.Network
	sim            *simulation.Link
	server, client *netcode.Driver
	s, c           netcode.Conn

	now                    time.Time
	serverTick, clientTick time.Duration
	serverDue, clientDue   time.Time
	serverTurn, clientTurn func()
}

func newMatch(t *testing.T, network string, serverTick, clientTick time.Duration) *match {
	t.Helper()
	var bad link.Conditions
	err := bad.UnmarshalText([]byte(network))
	if err != nil {
		t.Fatal(err)
	}
	m := &match{
		t: t, net: new(link.Network), now: time.Unix(1000, 0),
		serverTick: serverTick, clientTick: clientTick, serverTurn: func() {}, clientTurn: func() {},
	}
	m.serverDue, m.clientDue = m.now, m.now.Add(clientTick/3)
	open := func() link.Link {
		node, err := m.net.Open(address.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		return node
	}
	home := open()
	if m.sim, err = simulation.New(open(), simulation.Config{Seed: 5, In: bad, Out: bad}); err != nil {
		t.Fatal(err)
	}
	m.server = m.open(netcode.NewServer, home)
	m.client = m.open(netcode.NewClient, m.sim)
	if err := m.server.Listen(address.Addr{}); err != nil {
		t.Fatal(err)
	}
	if m.c, err = m.client.Connect(home.Local()); err != nil {
		t.Fatal(err)
	}
	m.run(10 * time.Second)
	for m.s = range m.server.Conns() {
		m.s.SetInGame(true)
	}
	m.c.SetInGame(true)
	if m.c.State() != netcode.StateConnected || !m.s.InGame() {
		t.Fatalf("the client is %v", m.c.State())
	}
	return m
}

func (m *match) open(start func(netcode.Config) (*netcode.Driver, error), l link.Link) *netcode.Driver {
	m.t.Helper()
	d, err := start(netcode.Config{Link: l, Rand: chance{rand.NewChaCha8([32]byte{1})}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = d.Close() })
	return d
}

func (m *match) run(d time.Duration) {
	for end := m.now.Add(d); m.now.Before(end); {
		m.now = m.now.Add(ms)
		m.sim.Advance(m.now)
		m.net.Step()
		m.turn(m.server, &m.serverDue, m.serverTick, m.serverTurn)
		m.turn(m.client, &m.clientDue, m.clientTick, m.clientTurn)
	}
}

func (m *match) turn(d *netcode.Driver, due *time.Time, tick time.Duration, turn func()) {
	m.t.Helper()
	if due.After(m.now) {
		return
	}
	*due = due.Add(tick)
	if err := d.Update(m.now); err != nil {
		m.t.Fatal(err)
	}
	turn()
	d.Flush()
}

var networks = []string{"broadband", "4g", "4g+regional-median"}

// TestCommandsOverNetwork: a client that corrects its tick by the margin of the server's buffer has a command
// there for nearly every tick, though it begins with the server's tick, ticks wrap, and its clock
// runs 200 ppm fast.
func TestCommandsOverNetwork(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) { testCommands(t, network) })
	}
}

func testCommands(t *testing.T, network string) {
	const tick = time.Second / 60
	m := newMatch(t, network, tick, tick-tick/5000)
	serverAt := uint32(math.MaxUint32 - 3000) // wraps after 50 s
	buffer := playout.NewCommandBuffer(serverAt+1, 0)
	exacts, all := 0, 0
	m.serverTurn = func() {
		serverAt++
		for command := range m.s.Commands() {
			if len(command.Data) != 1 || command.Data[0] != byte(command.Tick) {
				t.Fatalf("tick %d has %v", command.Tick, command.Data)
			}
			buffer.Put(command.Tick, command.Data)
		}
		data, exact := buffer.Take(serverAt)
		if all++; exact {
			exacts++
		}
		if exact && data[0] != byte(serverAt) {
			t.Fatalf("the command of tick %d is %v", serverAt, data)
		}
		margin := int8(min(max(math.Floor(buffer.Margin()), -100), 100))
		if err := m.s.SendSnapshot(serverAt, []byte{byte(margin)}); err != nil {
			t.Fatal(err)
		}
	}
	var at, corrected uint32
	corrections := 0
	known := false
	m.clientTurn = func() {
		at++
		seen, snapshot, ok := m.c.Snapshot()
		switch {
		case !ok:
		case !known:
			known, at, corrected = true, seen, seen+16
		case int32(seen-corrected) > 0:
			if margin := int8(snapshot[0]); margin < 0 || margin > 2 {
				at -= uint32(int32(margin))
				corrected = at + 64
				corrections++
			}
		}
		if !known {
			return
		}
		if err := m.c.SendCommand(at, []byte{byte(at)}); err != nil {
			t.Fatal(err)
		}
	}
	m.run(20 * time.Second)
	settling := corrections
	exacts, all = 0, 0
	m.run(100 * time.Second)
	slack, _ := buffer.Slack()
	t.Logf("after 20 s, %d of %d ticks (%.2f %%) have an exact command, %d corrections; %d before; slack %.1f",
		exacts, all, 100*float64(exacts)/float64(all), corrections-settling, settling, slack)
	if all < 5990 || float64(exacts) < 0.995*float64(all) {
		t.Errorf("%d of %d ticks have an exact command", exacts, all)
	}
	if corrections-settling > 10 {
		t.Errorf("%d corrections after the first 20 s", corrections-settling)
	}
	if slack > 6 {
		t.Errorf("commands wait for %v ticks", slack)
	}
}

// viewer is a client that shows snapshots, and verifies what its clock says.
type viewer struct {
	*match
	clock    *playout.Clock
	tick     time.Duration // of the server, nominal
	received map[uint32]bool
	newest   uint32

	started bool
	at      uint32
	frac    float64
	frames  int // after the first one between two snapshots
	covered int // with a snapshot before and one after the shown time, not held
	jumps   int
	longest time.Duration // largest jump
}

// newViewer lets the server send a snapshot every `every` ticks from first on.
func newViewer(t *testing.T, network string, first uint32, every int, drift float64) *viewer {
	const tick = time.Second / 60
	real := time.Duration(float64(tick) * (1 + drift))
	v := &viewer{
		match: newMatch(t, network, real, time.Second/120), tick: tick,
		clock: newClock(t, tick, 0, 0), received: map[uint32]bool{},
	}
	serverAt := first
	v.serverTurn = func() {
		if serverAt++; serverAt%uint32(every) == 0 {
			if err := v.s.SendSnapshot(serverAt, []byte{1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	v.clientTurn = v.frame
	return v
}

func (v *viewer) frame() {
	if tick, _, ok := v.c.Snapshot(); ok {
		v.received[tick] = true
		v.newest = tick
		v.clock.Snapshot(tick, v.now)
	}
	before := v.clock.Stats()
	at, fraction, ok := v.clock.At(v.now)
	if !ok {
		return
	}
	after := v.clock.Stats()
	if v.started {
		moved := time.Duration((float64(int32(at-v.at)) + fraction - v.frac) * float64(v.tick))
		if moved < 0 {
			v.t.Fatalf("the shown time moved by %v", moved)
		}
		// A frame comes up to 1 ms late, since time moves in steps of 1 ms.
		if moved > (v.clientTick+ms)*105/100+time.Microsecond {
			v.jumps++
			v.longest = max(v.longest, moved)
		}
	}
	v.started, v.at, v.frac = true, at, fraction
	if v.frames == 0 && !v.has(at, -1) {
		return
	}
	v.frames++
	if v.has(at, -1) && v.has(at+1, 1) && after.Held == before.Held {
		v.covered++
	}
}

// has reports whether there is a snapshot of the tick or of up to a second in a direction.
func (v *viewer) has(tick uint32, direction int) bool {
	for i := range 60 {
		if v.received[tick+uint32(i*direction)] {
			return true
		}
	}
	return false
}

// TestClockOverNetwork: nearly all frames show a time between two snapshots that have arrived, without a jump,
// though the server's clock differs by 200 ppm and ticks wrap.
func TestClockOverNetwork(t *testing.T) {
	for _, network := range networks {
		for every, drift := range map[int]float64{1: 200e-6, 3: -200e-6} {
			v := newViewer(t, network, math.MaxUint32-2000, every, drift)
			v.run(120 * time.Second)
			st := v.clock.Stats()
			share := float64(v.covered) / float64(v.frames)
			t.Logf("%s, a snapshot every %d ticks, drift %v ppm: %.2f %% of %d frames between two snapshots, %+v",
				network, every, drift*1e6, 100*share, v.frames, st)
			if v.frames < 14000 || share < 0.99 {
				t.Errorf("%d of %d frames", v.covered, v.frames)
			}
			if v.jumps > 0 || st.Resets > 0 {
				t.Errorf("%d jumps, the largest %v; %d resets", v.jumps, v.longest, st.Resets)
			}
			if st.Delay > 200*ms || (st.Delay-v.clock.Target()).Abs() > 30*ms {
				t.Errorf("the delay is %v, its target %v", st.Delay, v.clock.Target())
			}
		}
	}
}

// TestClockAfterPause: when the server was silent for 2 s, the clock is soon right again. If its ticks
// stood still, the shown time stands still, too; if they went on, it jumps once.
func TestClockAfterPause(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, network := range networks {
			v := newViewer(t, network, 0, 1, 0)
			v.run(20 * time.Second)
			delay := v.clock.Stats().Delay
			if lost {
				in := link.Conditions{Loss: 100}
				if err := v.sim.SetIn(in); err != nil {
					t.Fatal(err)
				}
			} else {
				v.serverDue = v.serverDue.Add(2 * time.Second)
			}
			v.run(2 * time.Second)
			var bad link.Conditions
			if err := bad.UnmarshalText([]byte(network)); err != nil {
				t.Fatal(err)
			}
			if err := v.sim.SetIn(bad); err != nil {
				t.Fatal(err)
			}
			v.run(time.Second)
			v.frames, v.covered = 0, 0
			v.run(10 * time.Second)
			st := v.clock.Stats()
			t.Logf("%s, lost %v: %d of %d frames, delay %v before, %d jumps, %+v", network, lost, v.covered, v.frames, delay, v.jumps, st)
			jumps := 0
			if lost {
				jumps = 1
			}
			if v.jumps != jumps || st.Resets != 1 {
				t.Errorf("%s, lost %v: %d jumps, %d resets", network, lost, v.jumps, st.Resets)
			}
			if share := float64(v.covered) / float64(v.frames); share < 0.97 {
				t.Errorf("%s, lost %v: %d of %d frames", network, lost, v.covered, v.frames)
			}
			if (st.Delay - delay).Abs() > 50*ms {
				t.Errorf("%s, lost %v: the delay is %v, before the pause %v", network, lost, st.Delay, delay)
			}
		}
	}
}
