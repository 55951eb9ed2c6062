//go:build linux

// Idle measures the processor time of `ferry serve` while nothing happens: with 1 and with 301
// interfaces beside loopback, without players, with 200 that send nothing but their PING each 3 s, as
// Unity Transport does, and with 200 that send nothing. It needs root, and iproute2.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/ferryrelay/ferry/scripts/lab"
)

const players = 200

var (
	relayAddr = netip.MustParseAddrPort("198.51.100.1:7777")
	first     = [2]netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.19.0.1")}
)

type options struct {
	binary string
	span   time.Duration
	settle time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.binary, "ferry", "", "`FILE` of the binary (default: it is built)")
	flag.DurationVar(&o.span, "span", 20*time.Second, "`TIME` of each measurement")
	flag.DurationVar(&o.settle, "settle", 10*time.Second, "`TIME` to wait before each")
	others := flag.String("others", "", "`COMMANDS` to measure as well, separated by semicolons, such as 'turnserver -n'")
	flag.Parse()
	err := run(&o, strings.FieldsFunc(*others, func(r rune) bool { return r == ';' }))
	if err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
}

func run(o *options, others []string) error {
	dir, err := os.MkdirTemp("", "ferry-idle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.binary == "" {
		if o.binary, err = lab.Binary(dir); err != nil {
			return err
		}
	}
	fmt.Printf("%-24s %11s %8s %8s %10s %8s\n", "program", "interfaces", "players", "ms/s", "switches/s", "threads")
	for _, interfaces := range []int{1, 301} {
		if err := o.measureAll(filepath.Join(dir, fmt.Sprint(interfaces)), interfaces, others); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) measureAll(dir string, interfaces int, others []string) (err error) {
	spaces, cleanup, err := lab.NewNamespaces("relay", "players")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanup.Finish()) }()
	relay, outside := spaces[0], spaces[1]
	steps := []func() error{
		func() error { return os.Mkdir(dir, 0o700) },
		func() error { return relay.IP("link add outside type veth peer name relay netns " + outside.Name) },
		func() error { return relay.IP("addr add 198.51.100.1/30 dev outside") },
		func() error { return outside.IP("addr add 198.51.100.2/30 dev relay") },
		func() error { return relay.IP("link set outside up") },
		func() error { return outside.IP("link set relay up") },
		func() error { return relay.IP("route add default via 198.51.100.2") },
		func() error { return outside.IP("route add local 198.18.0.0/15 dev lo") },
	}
	for i := 1; i < interfaces; i += 2 {
		steps = append(steps,
			func() error { return relay.IP(fmt.Sprintf("link add v%d up type veth peer name v%d", i, i+1)) },
			func() error { return relay.IP(fmt.Sprintf("link set v%d up", i+1)) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	for _, command := range others {
		words := strings.Fields(command)
		p, err := lab.StartProcess(lab.ProcessConfig{In: relay, Path: words[0], Args: words[1:], Log: filepath.Join(dir, "other.log"),
			Ready: func(string) bool { return true }})
		if err == nil {
			err = o.measure(filepath.Base(words[0]), interfaces, 0, p.PID())
			p.Kill()
		}
		if err != nil {
			return err
		}
	}
	r, err := lab.StartRelay(lab.RelayConfig{In: relay, Binary: o.binary, Dir: dir, Addr: relayAddr, YAML: "idle_timeout: 1h\n"})
	if err != nil {
		return err
	}
	defer r.Kill()
	if err := o.measure("ferry", interfaces, 0, r.PID()); err != nil {
		return err
	}
	stop, err := bindPlayers(r, outside)
	if err != nil {
		return err
	}
	if err := errors.Join(o.measure("ferry, PING each 3 s", interfaces, players, r.PID()), stop()); err != nil {
		return err
	}
	return o.measure("ferry, silent", interfaces, players, r.PID())
}

// bindPlayers returns when all are bound and linked.
func bindPlayers(r *lab.Relay, in lab.Namespace) (stop func() error, err error) {
	side := func(n int) lab.SideConfig { return lab.SideConfig{Do: in.Do, First: first[n]} }
	f, err := lab.NewFleet(lab.FleetConfig{Hosts: side(0), Joiners: side(1), Relay: relayAddr, Matches: players / 2})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	stop = func() error { cancel(); return <-ended }
	if _, err := lab.AddMatches(ctx, r.API(in, 0), f, players/2); err != nil {
		return nil, errors.Join(err, stop())
	}
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		m, err := r.Metrics()
		if err == nil && m["ferry_links"] == players/2 {
			return stop, nil
		}
		if time.Since(begin) > 20*time.Second {
			return nil, errors.Join(fmt.Errorf("%v of %d players are linked: %v", 2*m["ferry_links"], players, err), stop())
		}
	}
}

func (o *options) measure(program string, interfaces, players, pid int) error {
	time.Sleep(o.settle)
	run, switches, _, err := use(pid)
	if err != nil {
		return err
	}
	begin := time.Now()
	time.Sleep(o.span)
	run2, switches2, threads, err := use(pid)
	if err != nil {
		return err
	}
	s := time.Since(begin).Seconds()
	fmt.Printf("%-24s %11d %8d %8.2f %10.0f %8d\n", program, interfaces, players,
		float64(run2-run)/1e6/s, float64(switches2-switches)/s, threads)
	return nil
}

// use returns the time of the threads of a process on a processor, in nanoseconds, and how often one gave it up.
func use(pid int) (run, switches uint64, threads int, err error) {
	all, err := procfs.AllThreads(pid)
	for _, t := range all {
		stat, err := t.Schedstat()
		status, err2 := t.NewStatus()
		if err := errors.Join(err, err2); err != nil {
			return 0, 0, 0, err
		}
		run += stat.RunningNanoseconds
		switches += status.VoluntaryCtxtSwitches + status.NonVoluntaryCtxtSwitches
	}
	return run, switches, len(all), err
}
