package probe

import (
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// game is a side that speaks Netcode. It is one goroutine's.
type game struct {
	*netcode.Driver
	o     Options
	out   *printer
	hello netcode.RPCType[[]byte]
	names map[netcode.Conn]string // of those that have not ended
	named int
	tick  uint32
	body  []byte
}

var _ side = (*game)(nil)

// newGame listens or begins to connect. The link remains the caller's if that
// fails.
func newGame(o Options, w way, out *printer) (*game, error) {
	g := &game{o: o, out: out, names: map[netcode.Conn]string{}, body: make([]byte, o.Send)}
	rpcs := new(netcode.RPCRegistry)
	var err error
	if g.hello, err = netcode.RegisterApprovalRPC(rpcs, "ferry.probe.hello", netcode.Raw()); err != nil {
		return nil, err
	}
	cfg := netcode.Config{Link: w.sim, RPCs: rpcs, GameVersion: o.GameVersion, RequireApproval: o.Approve}
	if o.serves() {
		if g.Driver, err = netcode.NewServer(cfg); err == nil {
			err = g.Listen(address.Addr{})
		}
		return g, err
	}
	cfg.RequireApproval = false
	if g.Driver, err = netcode.NewClient(cfg); err == nil {
		_, err = g.Connect(w.to)
	}
	return g, err
}

func (g *game) turn(now time.Time) error {
	g.tick++
	err := g.Update(now)
	for _, ev := range g.Events() {
		g.handleEvent(ev)
	}
	for c := range g.Conns() {
		g.exchange(c)
	}
	if err == nil {
		g.Flush()
	}
	return err
}

// handleEvent prints an event and reacts to it.
func (g *game) handleEvent(ev netcode.Event) {
	l := Line{Event: "state", Connection: g.name(ev.Conn), State: ev.State.String(), NetworkID: int32(ev.NetworkID)}
	if at, ok := ev.Conn.Remote(); ok {
		l.Address = at.String()
	}
	switch ev.State {
	case netcode.StateDisconnected:
		l.Reason = ev.Reason.String()
		if ev.PeerReason != ev.Reason || ev.PeerText != "" {
			l.PeerReason, l.PeerText = ev.PeerReason.String(), ev.PeerText
		}
		if ev.Cause != nil {
			l.Error = ev.Cause.Error()
		}
		delete(g.names, ev.Conn)
	case netcode.StateApproval:
		if !g.o.serves() {
			_ = ev.Conn.SendRPC(g.hello.New([]byte("hello"))) // Refused only if the connection is over.
		}
	case netcode.StateConnected:
		ev.Conn.SetInGame(true)
	}
	g.out.print(l)
}

func (g *game) name(c netcode.Conn) string {
	if g.names[c] == "" {
		g.named++
		g.names[c] = fmt.Sprint("#", g.named)
	}
	return g.names[c]
}

// exchange reads the messages of a connection and sends its own.
func (g *game) exchange(c netcode.Conn) {
	for r := range c.RPCs() {
		v, ok := g.hello.From(r)
		if !ok {
			continue
		}
		g.out.print(Line{Event: "data", Connection: g.name(c), Data: "hello", Bytes: len(v), Head: head(v)})
		if g.o.serves() {
			_ = c.Approve() // an error means that approval was not requested
		}
	}
	if g.o.Send == 0 || c.State() != netcode.StateConnected {
		return
	}
	// Either is refused to the side that may not.
	if g.o.serves() {
		_ = c.SendSnapshot(g.tick, g.body)
	} else {
		_ = c.SendCommand(g.tick, g.body)
	}
}

func (g *game) peers() (connecting, connected int) {
	for c := range g.Conns() {
		if c.State() == netcode.StateConnected {
			connected++
		} else {
			connecting++
		}
	}
	return connecting, connected
}

func (g *game) stats() (lines []Line) {
	for c := range g.Conns() {
		st, ok := c.Stats()
		if !ok {
			continue
		}
		s := statsOf(st.Stats)
		s.RTT, s.Variation, s.InFlight = milliseconds(st.RTT), milliseconds(st.RTTVariation), st.InFlight
		s.RPCsSent, s.RPCsReceived = st.RPCsSent, st.RPCsReceived
		s.StreamSent, s.StreamGot, s.StreamLate, s.StreamLost = st.Sent, st.Received, st.Late, st.Lost
		lines = append(lines, Line{Connection: g.name(c), State: c.State().String(), NetworkID: int32(c.NetworkID()), Stats: &s})
	}
	return lines
}

func (g *game) total() Stats {
	st := g.Driver.Stats()
	s := statsOf(st.Stats)
	s.Drops = st.Drops
	return s
}

// statsOf are the counters that a connection and a driver have.
func statsOf(st netcode.Stats) Stats {
	return Stats{
		Sent: st.PacketsSent, SentBytes: st.BytesSent, Received: st.PacketsReceived, RecvBytes: st.BytesReceived,
		Resent: st.Resent, Duplicates: st.Duplicates,
	}
}

// close disconnects all connections, without losses of the simulated network.
func (g *game) close() error {
	if sim, ok := g.Link().(*link.Simulation); ok {
		_, _ = sim.SetIn(link.Conditions{}), sim.SetOut(link.Conditions{})
	}
	return g.Close()
}
