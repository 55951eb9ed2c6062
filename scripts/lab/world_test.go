//go:build lab && linux

package lab

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// The world: networks as players have them, one row of a table for each combination.

type dimension struct {
	name   string
	values []string // the first one is the usual one
}

const (
	dimRelay = iota
	dimHost
	dimPlayers
	dimCall
	dimPath
	dimAddress
	dimChange
	dimTransport
	dimXDP
	dimEvent
)

// dimensions are those of a row. Families are 4, 6 or both, in the order of the relay's
// setting udp. A host of both binds an IPv4 socket, as Netcode for GameObjects does.
var dimensions = []dimension{
	dimRelay:   {"relay", []string{"4+6", "4", "6+4", "6"}},
	dimHost:    {"host", []string{"4", "6", "4+6"}},
	dimPlayers: {"players", []string{"4,4", "4,6", "6,6", "4+6,4+6"}},
	// API calls: each player's own, over IPv6 if it has that; or a backend's over IPv4
	// if the relay has that, which names the family of a player that has only IPv6.
	dimCall: {"call", []string{"own", "backend"}},
	// Largest packet behind the router, in both directions or one. A silent router sends
	// no Packet Too Big, and clamps the MSS of TCP as such routers do.
	dimPath: {"path", []string{"1500", "1480", "1428", "1400", "1280", "1400 down", "1400 up", "1400 silent", "1280 silent"}},
	// proxy: a user-space proxy with a private address, such as a container's. hairpin:
	// players with private addresses. Refused: without the setting for them.
	dimAddress: {"address", []string{"public", "nat", "nat ports", "proxy", "proxy refused", "hairpin", "hairpin refused",
		"redirect", "dnat"}},
	dimChange:    {"change", []string{"none", "port", "address", "network", "family", "4s", "20s", "asleep"}},
	dimTransport: {"transport", []string{"udp", "dtls", "ws", "wss"}},
	dimXDP:       {"xdp", []string{"off", "tc"}},
	// The last ones are of the host, whose place a player takes: see departures.
	dimEvent: {"event", []string{"none", "upgrade", "kill", "host leaves", "host closes", "host crashes"}},
}

type worldRow []int

// get returns a value of the row; "": still open.
func (r worldRow) get(dim int) string {
	if r[dim] < 0 {
		return ""
	}
	return dimensions[dim].values[r[dim]]
}

func (r worldRow) has(dim int, values ...string) bool { return slices.Contains(values, r.get(dim)) }

func (r worldRow) isOpen(dims ...int) bool {
	return slices.ContainsFunc(dims, func(d int) bool { return r[d] < 0 })
}

// String lists what is not usual.
func (r worldRow) String() string {
	var all []string
	for d := range dimensions {
		if r[d] != 0 || d == dimTransport {
			all = append(all, dimensions[d].name+" "+r.get(d))
		}
	}
	return strings.Join(all, ", ")
}

func (r worldRow) players() []string { return strings.Split(r.get(dimPlayers), ",") }

func share(a, b string) bool {
	return a == "" || b == "" || strings.Contains(a, "4") && strings.Contains(b, "4") || strings.Contains(a, "6") && strings.Contains(b, "6")
}

// permitted reports whether a network can be like that, as far as it is decided.
func permitted(row []int) bool {
	r := worldRow(row)
	relay := r.get(dimRelay)
	proxied, hairpin := strings.HasPrefix(r.get(dimAddress), "proxy"), strings.HasPrefix(r.get(dimAddress), "hairpin")
	switch {
	case !share(relay, r.get(dimHost)), !r.isOpen(dimPlayers) &&
		slices.ContainsFunc(r.players(), func(p string) bool { return !share(relay, p) }):
		return false // It has no way to the relay at all.
	case relay == "6" && r.has(dimHost, "4+6"):
		return false // Its IPv4 socket cannot reach the relay.
	case r.has(dimXDP, "tc") && !r.isOpen(dimTransport) && !r.has(dimTransport, "udp"):
		return false // The program relays plain UDP only.
	case r.has(dimChange, "family") && relay != "" && len(relay) == 1:
		return false
	case (proxied || hairpin) && !(share(relay, "4") && r.has(dimPlayers, "", "4,4") && r.has(dimHost, "", "4") &&
		!r.has(dimChange, "address", "network", "family")):
		return false // The private addresses are IPv4 here.
	case proxied && r.has(dimTransport, "ws", "wss"):
		return false // The proxy is one for UDP.
	case r.has(dimAddress, "hairpin refused") && r.has(dimTransport, "ws", "wss"):
		return false // Over TCP no source is refused.
	case r.refused() && r.migrates():
		return false // There is no match.
	}
	return true
}

// spectates reports whether the first player then gets much more than it sends: it
// moves to a network that no API call came from.
func (r worldRow) spectates() bool {
	return r.has(dimTransport, "udp") && r.has(dimChange, "network", "family") && r.has(dimCall, "own") && !r.refused()
}

func (r worldRow) migrates() bool { return departures[r.get(dimEvent)] != 0 }

// refused reports whether the relay is to refuse the players.
func (r worldRow) refused() bool { return strings.HasSuffix(r.get(dimAddress), "refused") }

// block is dimensions of which all combinations are rows. The other ones have their
// usual values, or those given.
type block struct {
	dims  []int
	given map[int]string
}

// only6 is IPv6 without a choice of endpoints.
var only6 = map[int]string{dimRelay: "6", dimHost: "6", dimPlayers: "6,6"}

var blocks = []block{
	{dims: []int{dimRelay, dimHost, dimPlayers, dimCall}},
	{dims: []int{dimRelay, dimPlayers}, given: map[int]string{dimTransport: "dtls"}},
	{dims: []int{dimPath, dimTransport, dimXDP}},
	{dims: []int{dimPath, dimTransport, dimXDP}, given: only6},
	{dims: []int{dimAddress, dimTransport, dimXDP}},
	{dims: []int{dimAddress, dimEvent}, given: map[int]string{dimRelay: "4"}},
	{dims: []int{dimEvent, dimPlayers, dimCall}},
	{dims: []int{dimChange, dimTransport, dimXDP}},
	{dims: []int{dimChange, dimTransport}, given: only6},
	{dims: []int{dimChange, dimTransport}, given: map[int]string{dimAddress: "nat ports"}},
	{dims: []int{dimEvent, dimTransport, dimXDP}, given: map[int]string{dimRelay: "4"}},
	{dims: []int{dimEvent, dimTransport, dimXDP}, given: only6},
}

func (b block) rows() (all []worldRow) {
	row := make(worldRow, len(dimensions))
	for dim, value := range b.given {
		row[dim] = slices.Index(dimensions[dim].values, value)
	}
	var each func(dims []int)
	each = func(dims []int) {
		switch {
		case len(dims) > 0:
			for row[dims[0]] = range dimensions[dims[0]].values {
				each(dims[1:])
			}
		case permitted(row):
			all = append(all, slices.Clone(row))
		}
	}
	each(b.dims)
	return all
}

// somePairs are rows with every pair of values of two dimensions.
func somePairs() (all []worldRow) {
	var sizes []int
	for _, d := range dimensions {
		sizes = append(sizes, len(d.values))
	}
	for _, row := range pairwise(sizes, permitted) {
		all = append(all, row)
	}
	return all
}

var (
	worldAll  = flag.Bool("world.all", false, "all rows of the world, not the pairwise selection")
	worldOnly = flag.String("world.only", "", "rows of the world whose text contains all of these, separated by commas")
)

// TestWorld plays a small game, a host and two players, in each network, and prints a
// table. A row is red unless the game gets what it should, both ways and of each size,
// and ferry ctl why names the reason where it should not.
func TestWorld(t *testing.T) {
	rows := somePairs()
	if *worldAll {
		for _, b := range blocks {
			rows = append(rows, b.rows()...)
		}
		slices.SortStableFunc(rows, func(a, b worldRow) int { return slices.Compare(a, b) })
		rows = slices.CompactFunc(rows, slices.Equal[worldRow])
	}
	rows = slices.DeleteFunc(rows, func(r worldRow) bool {
		return slices.ContainsFunc(strings.Split(*worldOnly, ","), func(s string) bool { return !strings.Contains(r.String(), s) })
	})
	// What takes longest begins first.
	slices.SortStableFunc(rows, func(a, b worldRow) int { return cmp.Compare(b.length(), a.length()) })
	var table worldTable
	began := time.Now()
	t.Cleanup(func() { table.print(time.Since(began)) })
	for i, r := range rows {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			g := newWorldGame(t, r)
			g.play()
			table.add(&g.worldResult)
			if len(g.faults) > 0 {
				t.Errorf("%v: %s%s\n  outcomes: %s", r, g.verdict(), g.reasons(), g.outcomes())
			}
		})
	}
}

// length is about how many seconds a row takes.
func (r worldRow) length() (n int) {
	if r.migrates() {
		n = 4
	}
	for change, seconds := range map[string]int{"20s": 20, "4s": 4, "asleep": sleepSeconds, "network": 8, "family": 8} {
		if r.has(dimChange, change) {
			n += seconds
		}
	}
	return n
}

// worldTable collects results. Tests add to it in parallel.
type worldTable struct {
	mu  sync.Mutex // guards all
	all []*worldResult
}

func (w *worldTable) add(r *worldResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, r)
}

// print writes one line for each row, and how many of them are red.
func (w *worldTable) print(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortFunc(w.all, func(a, b *worldResult) int { return slices.Compare(a.row, b.row) })
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	for _, d := range dimensions {
		fmt.Fprint(out, d.name, "\t")
	}
	fmt.Fprintln(out, "in\tback\tplayer 1 down\tup\tplayer 2 down\tup\tverdict\tctl why")
	red := 0
	for _, r := range w.all {
		if len(r.faults) > 0 {
			red++
		}
		for d := range dimensions {
			fmt.Fprint(out, r.row.get(d), "\t")
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", seconds(r.in), seconds(r.back), strings.Join(r.shares[:], "\t"), r.verdict(),
			strings.Join(r.why, " / "))
	}
	out.Flush()
	fmt.Printf("%d rows in %v, %d red\n", len(w.all), took.Round(time.Second), red)
}

func seconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

type worldResult struct {
	row      worldRow
	in, back time.Duration // until all players are in; until all play again after a change. 0: never, or no change
	shares   [4]string     // percent of small, medium and largest messages; of both players, down and up
	why      []string      // what ferry ctl why says of players for whom something is wrong
	faults   []string
}

func (r *worldResult) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

func (r *worldResult) verdict() string {
	if len(r.faults) == 0 {
		return "ok"
	}
	return "RED: " + strings.Join(r.faults, "; ")
}

func (r *worldResult) reasons() (all string) {
	for _, why := range r.why {
		all += "\n  ctl why: " + why
	}
	return all
}

// outcomes returns how many datagrams the relay has had of each outcome or dropped.
func (g *worldGame) outcomes() string {
	metrics, err := g.relay.Metrics()
	if err != nil {
		return err.Error()
	}
	var all []string
	for name, n := range metrics {
		if n > 0 && (strings.Contains(name, "outcomes_total") || strings.Contains(name, "drop")) {
			name = strings.NewReplacer(`ferry_outcomes_total{outcome="`, "", `ferry_drops_total{reason="`, "dropped ", `"}`, "").Replace(name)
			all = append(all, fmt.Sprintf("%s %.0f", name, n))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// wait calls cond until it holds, or ctx or the time ends, and reports whether it did.
func (g *worldGame) wait(within time.Duration, cond func() bool) bool {
	for begin := time.Now(); time.Since(begin) < within; pause(g.Context(), 20*time.Millisecond) {
		if cond() {
			return true
		}
	}
	return cond()
}

func (g *worldGame) idle(d time.Duration) {
	ctx, cancel := context.WithTimeout(g.Context(), d)
	defer cancel()
	<-ctx.Done()
}
