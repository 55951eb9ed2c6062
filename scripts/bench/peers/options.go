package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxDuration bounds a run.
const maxDuration = time.Minute

// options are the command-line options.
type options struct {
	root, out               string
	rounds                  int
	duration, warmup        time.Duration
	retries                 int
	payload                 int       // bytes
	rates                   []float64 // datagrams per second, rising
	only, shapes            []string  // names; empty: all
	serverCPU, generatorCPU int
	pinned                  bool
	anyway                  bool     // also on a busy machine
	left                    []string // notes on relays without their program
	network, relaySpace     string
	multiplexes             bool   // coturn has --multiplex-peer
	coturn                  string // directory of its sources; empty: Debian's program
}

// parseOptions reads the command line.
func parseOptions(args []string, help io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(help)
	f.StringVar(&o.root, "root", ".", "`directory` of Ferry's repository")
	f.StringVar(&o.out, "out", "out", "`directory` for results and what is built, from the root")
	f.IntVar(&o.rounds, "rounds", 3, "rounds; the first does not count unless it is the only one")
	f.DurationVar(&o.duration, "duration", time.Second, "measured time of a run")
	f.DurationVar(&o.warmup, "warmup", 300*time.Millisecond, "time before the measured time")
	f.IntVar(&o.retries, "retries", 2, "repetitions of a run that is invalid for a reason other than the relay")
	f.IntVar(&o.payload, "payload", 112, "application payload in `bytes`; Ferry's datagrams have 38 more")
	rates := f.String("rate", "20000", "`list` of datagrams per second")
	only := f.String("only", "", "`list` of peers: "+strings.Join(peerNames(), ", ")+" (default all)")
	shapes := f.String("shapes", "pairs,star-up", "`list` of: "+strings.Join(scenarioNames(), ", ")+"; empty: all")
	f.IntVar(&o.serverCPU, "server-cpu", 1, "processor of the relay")
	f.IntVar(&o.generatorCPU, "generator-cpu", 0, "processor of the generator")
	f.StringVar(&o.network, "network", netLoopback, "loopback; or, as root, two network namespaces that each receive on a processor of their own: veth, or veth-cut, which segments merged messages before they cross")
	f.StringVar(&o.coturn, "coturn", "", "`directory` with the sources of coturn, to build (libevent-dev, libssl-dev) and measure; default turnserver, as installed")
	f.StringVar(&o.relaySpace, "relay-namespace", "", "`name` of the namespace with the relays: set by peers itself")
	f.BoolVar(&o.anyway, "anyway", false, "measure on a busy machine too, where many runs do not count")
	f.BoolVar(&o.pinned, "pinned", false, "set by peers itself: all programs are built and this process is pinned")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.rates, err = parseRates(*rates); err != nil {
		return o, err
	}
	if o.only, err = names(*only, peerNames()); err != nil {
		return o, err
	}
	if o.shapes, err = names(*shapes, scenarioNames()); err != nil {
		return o, err
	}
	if networks[o.network] == "" {
		return o, fmt.Errorf("--network %q is none of %s, %s, %s", o.network, netLoopback, netVeth, netVethCut)
	}
	return o, o.check(f.NArg())
}

func (o *options) check(extra int) (err error) {
	switch {
	case extra > 0:
		return fmt.Errorf("%d unexpected arguments", extra)
	case o.rounds < 1 || o.rounds > 1000:
		return fmt.Errorf("--rounds %d is not in 1 to 1000", o.rounds)
	case o.duration < 100*time.Millisecond || o.duration > maxDuration:
		return fmt.Errorf("--duration %v is not in 100ms to %v", o.duration, maxDuration)
	case o.warmup < 0 || o.warmup > maxDuration:
		return fmt.Errorf("--warmup %v is not in 0 to %v", o.warmup, maxDuration)
	case o.retries < 0 || o.retries > 10:
		return fmt.Errorf("--retries %d is not in 0 to 10", o.retries)
	case o.serverCPU == o.generatorCPU:
		return fmt.Errorf("relay and generator cannot share processor %d", o.serverCPU)
	}
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	if o.coturn != "" {
		if o.coturn, err = filepath.Abs(o.coturn); err != nil {
			return err
		}
	}
	if !filepath.IsAbs(o.out) {
		o.out = filepath.Join(o.root, o.out)
	}
	return nil
}

// typed returns the user's command line, without the flags that peers adds.
func (o *options) typed() []string {
	return slices.DeleteFunc(slices.Clone(os.Args), func(arg string) bool {
		return arg == "--pinned" || arg == "--relay-namespace="+o.relaySpace
	})
}

// bin returns the path of a built file.
func (o *options) bin(name string) string { return filepath.Join(o.out, "peers", name) }

// wants reports whether a list contains a name; an empty list contains all.
func wants(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func names(list string, known []string) ([]string, error) {
	all := split(list)
	for _, name := range all {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%q is none of %s", name, strings.Join(known, ", "))
		}
	}
	return all, nil
}

func parseRates(list string) (rates []float64, err error) {
	for _, s := range split(list) {
		r, err := strconv.ParseFloat(s, 64)
		if err != nil || !(r >= 1 && r <= 1e7) {
			return nil, fmt.Errorf("--rate %q is not in 1 to 10000000", s)
		}
		rates = append(rates, r)
	}
	slices.Sort(rates)
	if rates = slices.Compact(rates); len(rates) == 0 {
		return nil, fmt.Errorf("--rate is empty")
	}
	return rates, nil
}
