package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/link"
)

// ErrNeverConnected is the verdict on a client that was never connected, and on a server
// with Once to which no client connected.
var ErrNeverConnected = errors.New("probe: there never was a connection")

// side is a server or a client in one of the dialects.
type side interface {
	// turn makes one tick: it tells what happened, and sends. The error says
	// why the link ended.
	turn(now time.Time) error
	// peers is how many connections there are that are not connected yet, and
	// that are.
	peers() (connecting, connected int)
	// stats reports on each connection, and total on the side.
	stats() []Line
	total() Stats
	// close ends every connection and the link.
	close() error
}

// Run probes until the time is up, ctx ends, a client's connection ends, or the
// last client of a server with Once has left. It writes what happens to w.
//
// It returns nil if there was a connection, or if a server was stopped; the
// context of an interrupted probe is no error. Nothing runs any more then.
func Run(ctx context.Context, w io.Writer, o Options) error {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	out := &printer{w: w, json: o.JSON, start: time.Now()}
	link, err := open(ctx, o)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	var s side
	if o.Speak == Netcode {
		s, err = newGame(o, link, out)
	} else {
		s, err = newBare(o, link, out)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("probe: %w", err), link.sim.Close())
	}
	if o.serves() {
		out.print(Line{Event: "listening", Address: link.sim.Local().String(), JoinCode: link.code})
	} else {
		out.print(Line{Event: "connecting", Address: link.to.String()})
	}
	p := probing{Options: o, side: s, out: out, sim: link.sim}
	err = p.run(ctx)
	p.report()
	p.end(err)
	return errors.Join(err, s.close(), out.err)
}

// probing is a side and what is known of its life.
type probing struct {
	Options
	side side
	out  *printer
	sim  *link.Simulation

	connected bool // there was a connection
	reported  time.Time
}

func (p *probing) run(ctx context.Context) error {
	t := time.NewTicker(time.Second / time.Duration(p.TickRate))
	defer t.Stop()
	p.reported = time.Now()
	for {
		now := time.Now()
		if err := p.side.turn(now); err != nil {
			return fmt.Errorf("probe: the link ended: %w", err)
		}
		connecting, connected := p.side.peers()
		p.connected = p.connected || connected > 0
		if (p.Once || !p.serves()) && connecting+connected == 0 && (p.connected || !p.serves()) {
			return p.result()
		}
		if p.Options.Stats > 0 && now.Sub(p.reported) >= p.Options.Stats {
			p.reported = now
			p.report()
		}
		if p.out.err != nil {
			return p.out.err
		}
		select {
		case <-ctx.Done():
			return p.result()
		case <-t.C:
		}
	}
}

// result returns the result of a probe at its end.
func (p *probing) result() error {
	if !p.connected && (p.Once || !p.serves()) {
		return ErrNeverConnected
	}
	return nil
}

// report prints the counters of every connection.
func (p *probing) report() {
	for _, l := range p.side.stats() {
		l.Event = "stats"
		p.out.print(l)
	}
}

// end prints the counters of the whole.
func (p *probing) end(err error) {
	st := p.side.total()
	out, in := p.sim.Counts()
	st.Simulated = counts(map[string]uint64{
		"lost out": out.Lost, "lost in": in.Lost, "duplicated out": out.Duplicated, "duplicated in": in.Duplicated,
		"corrupted out": out.Corrupted, "corrupted in": in.Corrupted,
	})
	_, st.Peers = p.side.peers()
	l := Line{Event: "end", Stats: &st}
	if err != nil {
		l.Error = err.Error()
	}
	p.out.print(l)
}

// counts leaves out what did not happen.
func counts(m map[string]uint64) map[string]uint64 {
	maps.DeleteFunc(m, func(_ string, n uint64) bool { return n == 0 })
	return m
}

func listed(m map[string]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(parts, ", ")
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
