// Command capacity computes what a large machine carries, from unit costs that were
// measured on a small one (costs.go). It prints the tables of docs/performance.md.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	c := fit(fitted, maxBatch, buffer)
	w := os.Stdout
	fmt.Fprintf(w, "Unit costs: a wake-up %.1f·(1−exp(−sleep/%.0f µs)) µs, calls %.2f µs per batch, %.2f µs per datagram\n\n",
		c.Wake*1e6, c.Cooling*1e6, c.Batch*1e6, c.Datagram*1e6)
	validation(w, c)
	machines(w, c)
	delays(w, c)
	perCore(w, c)
}

// validation compares the model with the runs that it was not fitted to.
func validation(w io.Writer, c Costs) {
	fmt.Fprintln(w, "| datagrams/s | measured µs per datagram, batch | model | error |")
	fmt.Fprintln(w, "|---|---|---|---|")
	for _, p := range checked {
		r := simulate(c, Load{Rate: p.Rate}, 2, 1)
		fmt.Fprintf(w, "| %.0f | %.1f, %.1f | %.1f, %.1f | %+.0f %% |\n", p.Rate, p.PerDatagram*1e6, p.Batch,
			r.PerDatagram()*1e6, r.BatchSize(), 100*(r.PerDatagram()/p.PerDatagram-1))
	}
	fmt.Fprintln(w)
}

// safeLoad is the part of its saturation to which a machine is planned.
const safeLoad = 0.7

func machines(w io.Writer, c Costs) {
	fmt.Fprintln(w, "| game | players | Mpps | Gbit/s | table | control | most loaded worker | first limit | ten machines, one lost |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
	for _, g := range games {
		x := capacity(large, g, c, control, safeLoad)
		fmt.Fprintf(w, "| %s | %s | %.1f | %.1f | %.2f GiB | %.0f %% | %.2f of the mean | %s | %s |\n", g.Name, thousands(x.Players),
			x.Mpps, x.Gbps, x.MemoryGiB, 100*x.Control, x.Imbalance, x.Limit, thousands(9*x.Players))
	}
	fmt.Fprintln(w)
}

func delays(w io.Writer, c Costs) {
	fmt.Fprintln(w, "| load of a worker | p50 | p99 | mean batch | lost |")
	fmt.Fprintln(w, "|---|---|---|---|---|")
	g := games[len(games)/2]
	c = c.scaled(large.Dilation)
	for _, load := range []float64{0.1, 0.5, 0.7, 0.9, 1.1} {
		r := simulate(c, g.load(load*c.saturation()), 2, 1)
		fmt.Fprintf(w, "| %.0f %% | %.0f µs | %.0f µs | %.1f | %.1f %% |\n", 100*load, r.Delay(0.5)*1e6, r.Delay(0.99)*1e6,
			r.BatchSize(), 100*ratio(float64(r.Dropped), float64(r.Arrived)))
	}
	fmt.Fprintln(w)
}

// perCore prints the players of one core, from the measured processor time of each game.
func perCore(w io.Writer, c Costs) {
	fmt.Fprintln(w, "| game | players of a match | datagrams per player and second, payloads | measured µs per datagram | players per core |")
	fmt.Fprintln(w, "|---|---|---|---|---|")
	for _, g := range games {
		fmt.Fprintf(w, "| %s | %d and a host | %.0f up of %d bytes, %.0f down of %d | %.2f | %s |\n", g.Name, g.Players, g.UpHz, g.UpBytes,
			g.DownHz, g.DownBytes, g.PerDatagram*1e6, thousands(int(safeLoad/(g.PerDatagram*g.perPlayer()))))
	}
}

// thousands writes a number of players, rounded down to two digits.
func thousands(n int) string {
	unit := 1
	for n/unit >= 100 {
		unit *= 10
	}
	digits := fmt.Sprint(n - n%unit)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
