package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

// game is what both play.
type game struct{ players, ticks, command, snapshot int }

// played is a round: processor time in ns, memory in bytes.
type played struct{ server, all, heap, commands, snapshots int64 }

// library is one that plays.
type library struct {
	name string
	play func(game) (played, error)
}

func main() {
	g := game{}
	flag.IntVar(&g.players, "players", 100, "players")
	flag.IntVar(&g.ticks, "ticks", 300, "ticks of a round")
	flag.IntVar(&g.command, "command", 40, "bytes of a command")
	flag.IntVar(&g.snapshot, "snapshot", 600, "bytes of a snapshot")
	rounds := flag.Int("rounds", 5, "rounds of each")
	flag.Parse()
	if err := compare(g, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "netcodepeers:", err)
		os.Exit(1)
	}
}

// compare lets the libraries take turns and prints medians. The first round of
// each is not counted.
func compare(g game, rounds int) error {
	libraries := []library{{"netcode (Go)", playNetcode}, {"ENet 1.3 (C)", playENet}}
	all := make([][]played, len(libraries))
	for round := range rounds + 1 {
		for i, l := range libraries {
			p, err := l.play(g)
			if err != nil {
				return err
			}
			if round > 0 {
				all[i] = append(all[i], p)
			}
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d players, %d ticks, %d B up, %d B down, medians of %d rounds\n", g.players, g.ticks, g.command, g.snapshot, rounds)
	fmt.Fprintln(w, "\tserver, per player and tick\tboth sides\tserver at 30 ticks/s, per player\theap per connection\tcommands\tsnapshots")
	each := float64(g.players * g.ticks)
	for i, l := range libraries {
		m := func(of func(played) int64) float64 { return median(all[i], of) }
		server := m(func(p played) int64 { return p.server }) / each
		share := func(n float64) string { return fmt.Sprintf("%.2f %%", 100*n/each) }
		fmt.Fprintf(w, "%s\t%.0f ns\t%.0f ns\t%.4f %% of a core\t%.0f B\t%s\t%s\n", l.name, server,
			m(func(p played) int64 { return p.all })/each, server*30/1e7,
			m(func(p played) int64 { return p.heap })/float64(g.players),
			share(m(func(p played) int64 { return p.commands })), share(m(func(p played) int64 { return p.snapshots })))
	}
	return w.Flush()
}

func median(rounds []played, of func(played) int64) float64 {
	var v []int64
	for _, p := range rounds {
		v = append(v, of(p))
	}
	slices.Sort(v)
	if len(v) == 0 {
		return 0
	}
	return float64(v[len(v)/2])
}
