// Command movement is a game of bodies on a plane over client/netcode, without graphics. The host
// moves all bodies at a fixed tick; each player predicts its own and corrects the prediction by the
// host's snapshots. This process has all of them; every player has its own session with the relay.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

func main() {
	url := flag.String("api", "http://127.0.0.1:7777", "URL of the Relay Allocations API; RELAY_TOKEN is its token")
	var g game
	flag.IntVar(&g.players, "players", 20, "number of players, 1 to 100")
	flag.IntVar(&g.inputs, "inputs", 300, "number of inputs of each player, at least 1")
	flag.IntVar(&g.rate, "rate", 30, "ticks per second, 1 to 1000")
	flag.TextVar(&g.network, "network", link.Conditions{}, "simulated network, such as 4g or delay=50ms,loss=2")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	g.relay = &api.Client{BaseURL: *url, Token: os.Getenv("RELAY_TOKEN")}
	g.out = os.Stdout
	if _, err := g.play(ctx); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// game is a match of programs that play themselves.
type game struct {
	relay                 *api.Client
	players, inputs, rate int
	out                   io.Writer
	network               link.Conditions // simulated, for each side
}

// play plays a match and returns what each player knows at its end. It fails if a player knows
// anything else than the host.
func (g game) play(ctx context.Context) ([]result, error) {
	if g.inputs < 1 {
		return nil, fmt.Errorf("%d inputs, want at least 1", g.inputs)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d, code, err := netcode.HostRelay(ctx, g.relay, g.players, g.config())
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fmt.Fprintln(g.out, "join code:", code)

	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	results := make([]result, g.players)
	for i := range results {
		running.Go(func() {
			var err error
			if results[i], err = g.join(ctx, code, uint64(i)); err != nil {
				cancel(err)
			}
		})
	}
	h := &host{Driver: d, players: g.players, out: g.out, bodies: make(map[netcode.NetworkID]*body)}
	end, err := h.run(ctx, g.rate)
	if err == nil {
		running.Wait()
	}
	if cause := context.Cause(ctx); cause != nil { // the error of a player comes before what follows from it
		return nil, cause
	}
	if err != nil {
		return nil, err
	}
	return results, g.compare(end, results)
}

// join plays one player.
func (g game) join(ctx context.Context, code string, seed uint64) (result, error) {
	d, conn, err := netcode.JoinRelay(ctx, g.relay, code, g.config())
	if err != nil {
		return result{}, err
	}
	defer d.Close()
	p := &player{Driver: d, conn: conn, inputs: g.inputs, rand: rand.New(rand.NewPCG(seed, 0))}
	return p.run(ctx, g.rate)
}

func (g game) config() netcode.Config {
	return netcode.Config{Conditions: g.network, Timeouts: netcode.Timeouts{HandshakeApproval: 30 * time.Second}}
}

// compare returns an error if a player knows anything else than the host.
func (g game) compare(end map[netcode.NetworkID]vector, results []result) error {
	corrections, worst := 0, int32(0)
	for _, r := range results {
		if r.pos != end[r.id] || !maps.Equal(r.world, end) {
			return fmt.Errorf("player %d is at %v and knows %v, the host has %v", r.id, r.pos, r.world, end)
		}
		corrections += r.corrections
		worst = max(worst, r.worst)
	}
	_, err := fmt.Fprintf(g.out, "all %d players know the positions that the host has; corrections %d, the largest %d units\n",
		len(results), corrections, worst)
	return err
}

// runTicks runs a driver until a turn of the game reports that the match is over, or fails.
func runTicks(ctx context.Context, d *netcode.Driver, rate int, turn func(tick uint32) (over bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var over bool
	var failed error
	err := d.Run(ctx, rate, func(_ time.Time, tick uint32) {
		if over || failed != nil {
			return // One more tick may come after cancel.
		}
		if over, failed = turn(tick); over || failed != nil {
			cancel()
		}
	})
	if over || failed != nil {
		return failed
	}
	return err
}
