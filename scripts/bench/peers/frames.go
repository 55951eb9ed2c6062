package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig/figures"
)

// framesPeers are compared with frames from XDP, in the order of the first round.
var framesPeers = []string{"c", "off", "tc", "native", "bounce"}

var framesTitles = map[string]string{
	"c": "C loop", "off": "ferry, sockets", "tc": "ferry, tc", "native": "ferry, native", "bounce": "XDP_TX alone",
}

// framesOptions are the options of `peers frames`.
type framesOptions struct {
	options
	shape       string // pairs or star
	allocations []int
	loads       []load
}

// load is a rate in datagrams per second, and how many follow each other at once.
type load struct {
	Rate  float64 `json:"rate"`
	Burst int     `json:"burst"`
}

func (l load) String() string { return fmt.Sprintf("%s/s × %d", thousands(l.Rate), l.Burst) }

// framesSample is one run.
type framesSample struct {
	Allocations int     `json:"allocations"`
	Load        load    `json:"load"`
	Peer        string  `json:"peer"`
	Round       int     `json:"round"`
	Sent        uint64  `json:"sent"`
	Received    uint64  `json:"received"`
	Kernel      uint64  `json:"kernel"` // relayed by the fast path
	Seconds     float64 `json:"seconds"`
	CPU         float64 `json:"cpuNs"` // per datagram received, of relay and kernel thread
	P50         float64 `json:"p50us"`
	P99         float64 `json:"p99us"`
	Bad         string  `json:"bad,omitempty"`
}

func parseFramesOptions(args []string, help io.Writer) (framesOptions, error) {
	o := framesOptions{options: options{network: netVethNAPI, payload: framePayload}}
	f := flag.NewFlagSet("peers frames", flag.ContinueOnError)
	f.SetOutput(help)
	f.StringVar(&o.root, "root", ".", "`directory` of Ferry's repository")
	f.StringVar(&o.out, "out", "out", "`directory` for results and what is built, from the root")
	f.IntVar(&o.rounds, "rounds", 7, "rounds")
	f.DurationVar(&o.duration, "duration", 2*time.Second, "measured time of a run")
	f.DurationVar(&o.warmup, "warmup", 500*time.Millisecond, "time before the measured time")
	f.IntVar(&o.retries, "retries", 2, "repetitions of a run that something else disturbed")
	f.StringVar(&o.shape, "shape", "pairs", "pairs, or star: hosts with 10 players each")
	allocations := f.String("allocations", "1000", "`list` of numbers of allocations")
	loads := f.String("load", "120000x32", "`list` of RATExBURST: datagrams per second, and how many at once")
	only := f.String("only", "", "`list` of: "+strings.Join(framesPeers, ", ")+" (default all)")
	f.IntVar(&o.serverCPU, "server-cpu", 1, "processor of the relay")
	f.IntVar(&o.generatorCPU, "generator-cpu", 0, "processor of the generator")
	f.StringVar(&o.relaySpace, "relay-namespace", "", "`name` of the namespace with the relays: set by peers itself")
	f.BoolVar(&o.pinned, "pinned", false, "set by peers itself")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, s := range split(*allocations) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 22 || n > 1_000_000 {
			return o, fmt.Errorf("--allocations %q is not in 22 to 1000000", s)
		}
		o.allocations = append(o.allocations, n)
	}
	for _, s := range split(*loads) {
		rate, burst, ok := strings.Cut(s, "x")
		r, err := strconv.ParseFloat(rate, 64)
		n, err2 := strconv.Atoi(burst)
		if !ok || err != nil || err2 != nil || !(r >= 1 && r <= 1e7) || n < 1 || n > maxFrameBurst {
			return o, fmt.Errorf("--load %q is not RATExBURST, with a burst of 1 to %d", s, maxFrameBurst)
		}
		o.loads = append(o.loads, load{r, n})
	}
	var err error
	if o.only, err = names(*only, framesPeers); err != nil {
		return o, err
	}
	if len(o.allocations) == 0 || len(o.loads) == 0 || o.shape != "pairs" && o.shape != "star" {
		return o, errors.New("--allocations and --load are lists, --shape is pairs or star")
	}
	return o, o.check(f.NArg())
}

// frames measures relays with frames that XDP sends from memory, so that the generator's
// sockets are no limit and no cost: the topology of the study of the fast path.
func frames(ctx context.Context, args []string) error {
	o, err := parseFramesOptions(args, os.Stderr)
	if err != nil {
		return err
	}
	if o.pinned {
		runtime.GOMAXPROCS(2)
		return measureFrames(ctx, o)
	}
	if err := os.MkdirAll(o.bin(""), 0o755); err != nil {
		return err
	}
	here := filepath.Join(o.root, "scripts", "bench", "peers")
	for _, argv := range [][]string{
		{"gcc", "-O2", "-Wall", "-o", o.bin("swap"), filepath.Join("swap", "swap.c")},
		{"clang-14", "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-I/usr/include/x86_64-linux-gnu",
			"-c", "-o", o.bin("frames.o"), filepath.Join("frames", "frames.c")},
	} {
		if err := command(ctx, here, argv[0], argv[1:]...); err != nil {
			return fmt.Errorf("%w (needs gcc, clang-14 and libbpf-dev)", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return inVeth(ctx, o.options, []string{self, "frames"}, args)
}

// measureFrames runs all rounds, one relay at a time: two programs on one interface would
// cost each other.
func measureFrames(ctx context.Context, o framesOptions) error {
	g, err := newFrameGenerator(ctx, o)
	if err != nil {
		return err
	}
	defer g.close()
	if err := checkQuiet(ctx); err != nil {
		fmt.Println("WARNING:", err)
	}
	d := framesDocument{Commit: commit(ctx, o.root), Command: o.typed(), Kernel: kernel(), Shape: o.shape}
	for _, n := range o.allocations {
		for round := 1; round <= o.rounds; round++ {
			order := slices.DeleteFunc(slices.Clone(framesPeers), func(p string) bool { return !wants(o.only, p) })
			if round%2 == 0 {
				slices.Reverse(order)
			}
			for _, peer := range order {
				list, err := framesTurn(ctx, o, g, peer, n, round)
				d.Samples = append(d.Samples, list...)
				if err != nil {
					return errors.Join(fmt.Errorf("%s, %d allocations, round %d: %w", peer, n, round, err), writeFrames(o, &d))
				}
			}
		}
	}
	return writeFrames(o, &d)
}

// writeFrames reports and writes what was measured.
func writeFrames(o framesOptions, d *framesDocument) error {
	if len(d.Samples) == 0 {
		return nil
	}
	b, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	printFrames(d)
	return os.WriteFile(filepath.Join(o.out, framesFile), b, 0o644)
}

// framesTurn starts a relay with its allocations and measures it at all loads.
func framesTurn(ctx context.Context, o framesOptions, g *frameGenerator, peer string, allocations,
	round int) (list []framesSample, err error) {
	file := filepath.Join(o.out, "peers", "players")
	defer os.Remove(file)
	argv := []string{"/proc/self/exe", "embed", o.net().listen(), peer, strconv.Itoa(allocations), o.shape, file}
	switch peer {
	case "c":
		argv = []string{o.bin("swap"), "--addr", o.net().relay.String(), "--port", "0", "--mode", o.shape}
	case "bounce":
		argv = []string{"/proc/self/exe", "bounce", o.bin("frames.o"), o.net().at(bouncePort).String()}
	}
	srv, err := start(o.options, o.out, argv...)
	if err != nil {
		return nil, err
	}
	defer srv.stop()
	relay, err := srv.address(ctx)
	if err != nil {
		return nil, err
	}
	joiners := joinersOf(o.shape)
	var players []framePlayer
	if peer == "c" || peer == "bounce" {
		players = noPlayers(allocations, joiners)
	} else {
		if players, err = readPlayers(file, joiners); err != nil {
			return nil, err
		}
		if err = bindAll(ctx, relay, players, joiners); err != nil {
			return nil, err
		}
	}
	if err := g.fill(relay, players, joiners, peer == "c" && o.shape == "star"); err != nil {
		return nil, err
	}
	receiver, err := pinPoller(ctx, "relays", o.generatorCPU)
	if err != nil {
		return nil, err
	}
	// It shares its processor with the generator, which never waits.
	if out, err := exec.CommandContext(ctx, "chrt", "-f", "-p", "1", strconv.Itoa(receiver)).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("chrt: %w: %s", err, out)
	}
	poller, err := pinPoller(ctx, "generator", o.serverCPU)
	if err != nil {
		return nil, err
	}
	if err := g.all(ctx); err != nil { // validates the paths
		return nil, err
	}
	for _, l := range o.loads {
		one := framesSample{Allocations: allocations, Load: l, Peer: peer, Round: round}
		for try := 0; ; try++ {
			if err := g.run(ctx, o, srv, poller, &one); err != nil {
				return list, err
			}
			fmt.Println(one)
			if one.Bad == "" || try == o.retries {
				break
			}
		}
		list = append(list, one)
	}
	return list, nil
}

// noPlayers are players of relays that have no allocations.
func noPlayers(n, joiners int) []framePlayer {
	all := make([]framePlayer, n-n%(1+joiners))
	for i := range all {
		all[i].place(i, joiners)
		binary.LittleEndian.PutUint64(all[i].id[:], uint64(i))
	}
	return all
}

// byProgram reports whether the fast path is to relay the datagrams.
func (s *framesSample) byProgram() bool { return s.Peer == "tc" || s.Peer == "native" }

func (s framesSample) String() string {
	text := fmt.Sprintf("round %d  %-14s %7d allocations  %14s  CPU %6.0f ns  p50 %6.0f µs  p99 %6.0f µs", s.Round, framesTitles[s.Peer],
		s.Allocations, s.Load, s.CPU, s.P50, s.P99)
	if s.byProgram() {
		text += fmt.Sprintf("  %.1f %% in the kernel", 100*float64(s.Kernel)/float64(max(1, s.Received)))
	}
	if s.Bad != "" {
		text += "  DOES NOT COUNT: " + s.Bad
	}
	return text
}

// relayed asks a relay how many datagrams its fast path has relayed.
func relayed(ctx context.Context, srv *server) (n uint64, err error) {
	if err := srv.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return 0, err
	}
	return n, srv.line(ctx, func(l string) bool {
		_, err := fmt.Sscanf(l, "relayed %d", &n)
		return err == nil
	})
}

// printFrames prints a table of medians and ratios.
func printFrames(d *framesDocument) {
	fmt.Printf("\n%s; the relay's CPU per datagram with all that the kernel receives for it; ratios to the C loop of the same round, median (lowest to highest)\n", d.Shape)
	fmt.Println("| allocations | load | relay | ns | of the C loop | p50 µs | p99 µs | runs that count |\n|---|---|---|---|---|---|---|---|")
	type line struct {
		allocations int
		load        load
	}
	var lines []line
	for i := range d.Samples {
		if l := (line{d.Samples[i].Allocations, d.Samples[i].Load}); !slices.Contains(lines, l) {
			lines = append(lines, l)
		}
	}
	for _, l := range lines {
		for _, peer := range framesPeers {
			var ns, ratio, p50, p99 []float64
			runs := 0
			for i := range d.Samples {
				s := &d.Samples[i]
				if (line{s.Allocations, s.Load}) != l || s.Peer != peer {
					continue
				}
				if runs++; s.Bad != "" {
					continue
				}
				ns, p50, p99 = append(ns, s.CPU), append(p50, s.P50), append(p99, s.P99)
				if c := slices.IndexFunc(d.Samples, func(c framesSample) bool {
					return c.Peer == "c" && c.Bad == "" && (line{c.Allocations, c.Load}) == l && c.Round == s.Round
				}); c >= 0 {
					ratio = append(ratio, s.CPU/d.Samples[c].CPU)
				}
			}
			if runs > 0 {
				fmt.Printf("| %s | %v | %s | %s | %s | %s | %s | %d of %d |\n", thousands(float64(l.allocations)), l.load, framesTitles[peer],
					span(ns, "%.0f"), span(ratio, "%.2f"), span(p50, "%.0f"), span(p99, "%.0f"), len(ns), runs)
			}
		}
	}
}

const framesFile = "peers-frames.json"

// framesDocument is what is written of a session.
type framesDocument struct {
	Commit  string         `json:"commit"`
	Command []string       `json:"command"`
	Kernel  string         `json:"kernel"`
	Shape   string         `json:"shape"`
	Samples []framesSample `json:"samples"`
}

// span prints the median and the range of a list.
func span(list []float64, format string) string {
	if len(list) == 0 {
		return "–"
	}
	return fmt.Sprintf(format+" ("+format+"–"+format+")", figures.Median(list).Median, slices.Min(list), slices.Max(list))
}

// bouncePort is the port to which the least relay listens.
const bouncePort = 7777

// kernel returns the release of the running kernel.
func kernel() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}
