// Command webtransport measures a prototype of WebTransport in the relay (issue 37): what a
// datagram and a session cost with quic-go and webtransport-go, and what their queues lose, next
// to plain UDP and wss in the same run. docs/research/webtransport.md has the figures.
//
//	make webtransport
//	make webtransport WEBTRANSPORT='--bursts 10,32,64,100,128,256,512 --rounds 10'
//
// Transports are udp, wss, wt, wt-batch (packets wait a millisecond for others), wt-udpconn
// (quic-go reads the socket by itself) and quic (datagrams without HTTP/3).
//
// The relay runs on the first processor and the players on the second one, each in a process of
// its own. Half of the players are hosts, and each has one joiner.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

type options struct {
	kinds, sessions, rates, bursts string
	rounds, size                   int
	duration                       time.Duration
	settle                         time.Duration // until handshakes and their garbage have ended
	procs                          int
	pin, trace                     bool
}

var kinds = []string{"udp", "wss", "wt", "wt-batch", "wt-udpconn", "quic"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "webtransport:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 5 && os.Args[1] == "relay" {
		n, err := strconv.Atoi(os.Args[3])
		if err != nil {
			return err
		}
		return runRelay(os.Args[2], n, os.Args[4] == "trace")
	}
	if len(os.Args) == 6 && os.Args[1] == "players" {
		n, err := strconv.Atoi(os.Args[4])
		if err != nil {
			return err
		}
		return runPlayers(os.Args[2], os.Args[3], n, os.Args[5] == "trace")
	}
	o := options{settle: 2 * time.Second}
	flag.StringVar(&o.kinds, "transports", "udp,wss,wt,quic", "transports, in the order of a round")
	flag.StringVar(&o.sessions, "sessions", "200,2000,2000", "numbers of sessions")
	flag.StringVar(&o.rates, "rate", "30,3,10", "messages a second of each session, for each number of sessions")
	flag.StringVar(&o.bursts, "bursts", "", "measure what queues lose with bursts of so many messages")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds, in which the transports take turns")
	flag.IntVar(&o.size, "size", 100, "content of a message in bytes")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "time that one measurement takes")
	flag.IntVar(&o.procs, "procs", 2, "GOMAXPROCS of both processes")
	flag.BoolVar(&o.trace, "trace", false, "count QUIC packets by quic-go's trace, which costs processor time")
	flag.BoolVar(&o.pin, "pin", true, "one processor for the relay, another one for the players")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case o.rounds < 1:
		return fmt.Errorf("--rounds %d: want 1 or more", o.rounds)
	case o.pin && runtime.NumCPU() < 2:
		return errors.New("one processor: two are needed, or --pin=false")
	}
	for kind := range strings.SplitSeq(o.kinds, ",") {
		if !slices.Contains(kinds, kind) {
			return fmt.Errorf("--transports: no transport %q, want some of %s", kind, strings.Join(kinds, ","))
		}
	}
	if o.bursts != "" {
		return measureBursts(o)
	}
	return measureLoad(o)
}

// pair are the processes of a relay and of its players.
type pair struct{ relay, players *child }

// startPair starts both, and joins all matches. empty are the relay's figures before the first
// player, and joined those with all of them.
func startPair(o options, kind string, sessions int, trace bool) (p pair, empty, joined figures, err error) {
	mode := "plain"
	if trace {
		mode = "trace"
	}
	if p.relay, err = startChild(o, 0, "relay", kind, strconv.Itoa(sessions), mode); err != nil {
		return p, empty, joined, err
	}
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	line, err := p.relay.line(time.Minute)
	if err != nil {
		return p, empty, joined, err
	}
	f, err := os.CreateTemp("", "webtransport")
	if err != nil {
		return p, empty, joined, err
	}
	defer os.Remove(f.Name())
	if _, err = f.Write(line); err == nil {
		err = f.Close()
	}
	if err != nil {
		return p, empty, joined, err
	}
	if err = p.relay.ask("memory", &empty, time.Minute); err != nil {
		return p, empty, joined, err
	}
	if p.players, err = startChild(o, 1, "players", kind, f.Name(), strconv.Itoa(o.size), mode); err != nil {
		return p, empty, joined, err
	}
	if _, err = p.players.line(3 * joinWithin); err != nil {
		return p, empty, joined, fmt.Errorf("%s: players: %w", kind, err)
	}
	time.Sleep(o.settle)
	err = p.relay.ask("memory", &joined, time.Minute)
	return p, empty, joined, err
}

func (p pair) stop() {
	for _, c := range []*child{p.players, p.relay} {
		if c != nil {
			c.stop()
		}
	}
}

// child is a process of this program.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out chan []byte
}

func startChild(o options, cpu int, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, args...), out: make(chan []byte, 1)}
	c.cmd.Stderr = os.Stderr
	c.cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(o.procs), "QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING=true")
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread() // Pdeathsig and the affinity are of the thread.
	if o.pin {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return nil, err
		}
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.out)
		r := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			c.out <- line
		}
	}()
	return c, nil
}

func (c *child) line(within time.Duration) ([]byte, error) {
	select {
	case l, ok := <-c.out:
		if !ok {
			return nil, errors.New("the process has ended")
		}
		return l, nil
	case <-time.After(within):
		return nil, fmt.Errorf("no answer within %v", within)
	}
}

func (c *child) ask(command string, answer any, within time.Duration) error {
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		return err
	}
	l, err := c.line(within)
	if err != nil {
		return err
	}
	return json.Unmarshal(l, answer)
}

func (c *child) stop() {
	_ = c.in.Close()
	kill := time.AfterFunc(2*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	for range c.out {
	}
	_ = c.cmd.Wait()
}

// sample is what one measurement gives.
type sample struct {
	cpu        float64 // ns of the relay for each relayed message: one received and one sent
	delivered  float64 // received by players, of those sent
	goroutines float64 // of one session
	idleHeap   float64 // bytes of one session: objects and stacks
	idleRSS    float64
	busyHeap   float64
	busyRSS    float64
	load       float64 // of the relay's processor
	in, out    float64 // QUIC packets of the relay for each relayed message, with --trace
}

func measureLoad(o options) error {
	sessions, rates := strings.Split(o.sessions, ","), strings.Split(o.rates, ",")
	if len(sessions) != len(rates) {
		return errors.New("--rate: want as many as numbers of sessions")
	}
	samples := map[string][]sample{}
	for round := range o.rounds {
		for i := range sessions {
			n, err := strconv.Atoi(sessions[i])
			if err != nil || n < 2 || n%2 != 0 {
				return fmt.Errorf("--sessions: %q: want an even number", sessions[i])
			}
			for kind := range strings.SplitSeq(o.kinds, ",") {
				s, err := measure(o, kind, n, rates[i])
				if err != nil {
					return err
				}
				key := fmt.Sprintf("%s sessions × %s/s\t%s", sessions[i], rates[i], kind)
				samples[key] = append(samples[key], s)
				fmt.Fprintf(os.Stderr, "round %d: %s: %.2f µs, delivered %.4f, %.1f KB heap and stacks, %.1f KB RSS, load %.2f\n",
					round+1, strings.ReplaceAll(key, "\t", " "), s.cpu/1e3, s.delivered, s.busyHeap/1e3, s.busyRSS/1e3, s.load)
				if o.trace {
					fmt.Fprintf(os.Stderr, "%s: %.2f packets in and %.2f out for each message\n", kind, s.in, s.out)
				}
			}
		}
	}
	printLoad(o, sessions, rates, samples)
	return nil
}

// arriveWithin is the time in which messages arrive that are on their way.
const arriveWithin = 500 * time.Millisecond

func measure(o options, kind string, n int, rate string) (s sample, err error) {
	p, empty, idle, err := startPair(o, kind, n, o.trace)
	if err != nil {
		return s, err
	}
	defer p.stop()
	var from, to playerFigures
	if err := p.players.ask("send "+rate+" 1s", &from, time.Minute); err != nil {
		return s, err
	}
	time.Sleep(arriveWithin)
	if err := p.players.ask("figures", &from, time.Minute); err != nil {
		return s, err
	}
	var before, after, busy figures
	if err := p.relay.ask("figures", &before, time.Minute); err != nil {
		return s, err
	}
	began := time.Now()
	if err := p.players.ask(fmt.Sprintf("send %s %v", rate, o.duration), &to, 10*o.duration); err != nil {
		return s, err
	}
	took := time.Since(began)
	if err := p.relay.ask("figures", &after, time.Minute); err != nil {
		return s, err
	}
	time.Sleep(arriveWithin)
	var end playerFigures
	if err := p.players.ask("figures", &end, time.Minute); err != nil {
		return s, err
	}
	feed, busyQueue := after.Feed-before.Feed, after.Busy-before.Busy
	if oldest, refused := after.Oldest-before.Oldest, after.Refused-before.Refused; feed+busyQueue+oldest+refused > 0 {
		fmt.Fprintf(os.Stderr, "%s: dropped: %d packets by the feed, %d messages by the engine's queue, %d by rings, %d refused by quic-go\n",
			kind, feed, busyQueue, oldest, refused)
	}
	// Memory while messages flow.
	done := make(chan error, 1)
	var ignored playerFigures
	go func() { done <- p.players.ask("send "+rate+" 2s", &ignored, time.Minute) }()
	time.Sleep(time.Second)
	if err := errors.Join(p.relay.ask("memory", &busy, time.Minute), <-done); err != nil {
		return s, err
	}
	per := func(a, b uint64) float64 { return (float64(b) - float64(a)) / float64(n) }
	used := float64(after.CPU - before.CPU)
	return sample{
		cpu:        used / float64(after.Relayed-before.Relayed),
		delivered:  float64(end.Received-from.Received) / float64(end.Sent-from.Sent),
		goroutines: float64(idle.Goroutines-empty.Goroutines) / float64(n),
		idleHeap:   per(empty.Heap+empty.Stacks, idle.Heap+idle.Stacks), idleRSS: per(empty.RSS, idle.RSS),
		busyHeap: per(empty.Heap+empty.Stacks, busy.Heap+busy.Stacks), busyRSS: per(empty.RSS, busy.RSS),
		load: used / float64(took),
		in:   float64(after.In-before.In) / float64(after.Relayed-before.Relayed),
		out:  float64(after.Out-before.Out) / float64(after.Relayed-before.Relayed),
	}, nil
}

// median returns the middle of a field's values, with the lowest and the highest.
func median(all []sample, field func(sample) float64) (mid, low, high float64) {
	v := make([]float64, len(all))
	for i, s := range all {
		v[i] = field(s)
	}
	slices.SortFunc(v, cmp.Compare[float64])
	mid = v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (mid + v[len(v)/2-1]) / 2
	}
	return mid, v[0], v[len(v)-1]
}

func printLoad(o options, sessions, rates []string, samples map[string][]sample) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "load\ttransport\tµs for both directions\t× udp\t× wss\tdelivered"+
		"\theap + stacks, idle\tbusy\tRSS, idle\tbusy\tgoroutines\tload")
	for i := range sessions {
		load := fmt.Sprintf("%s sessions × %s/s", sessions[i], rates[i])
		ratio := func(kind string) func(all []sample) string {
			base := samples[load+"\t"+kind]
			return func(all []sample) string {
				if len(base) == 0 {
					return "–"
				}
				r := make([]sample, len(all))
				for i := range all { // paired: both of one round
					r[i].cpu = all[i].cpu / base[i].cpu
				}
				mid, low, high := median(r, func(s sample) float64 { return s.cpu })
				return fmt.Sprintf("%.1f (%.1f–%.1f)", mid, low, high)
			}
		}
		udp, wss := ratio("udp"), ratio("wss")
		for kind := range strings.SplitSeq(o.kinds, ",") {
			all := samples[load+"\t"+kind]
			cpu, low, high := median(all, func(s sample) float64 { return s.cpu })
			mid := func(f func(sample) float64) float64 { m, _, _ := median(all, f); return m }
			fmt.Fprintf(w, "%s\t%s\t%.1f (%.1f–%.1f)\t%s\t%s\t%.4f\t%.1f KB\t%.1f KB\t%.1f KB\t%.1f KB\t%.1f\t%.2f\n",
				load, kind, cpu/1e3, low/1e3, high/1e3, udp(all), wss(all),
				mid(func(s sample) float64 { return s.delivered }),
				mid(func(s sample) float64 { return s.idleHeap })/1e3, mid(func(s sample) float64 { return s.busyHeap })/1e3,
				mid(func(s sample) float64 { return s.idleRSS })/1e3, mid(func(s sample) float64 { return s.busyRSS })/1e3,
				mid(func(s sample) float64 { return s.goroutines }), mid(func(s sample) float64 { return s.load }))
		}
	}
	_ = w.Flush()
}

// lost is what became of the messages of a burst.
type lost struct {
	sent, frames, queue, http uint64 // at the relay
	packets, busy, oldest     uint64
	handed                    uint64
	arrived, late             uint64 // frames at the receiver, and packets that quic-go dropped there
	longest                   time.Duration
}

// measureBursts sends bursts from one joiner to its host, --rounds of each size, and prints where
// how many messages were lost.
func measureBursts(o options) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "transport\tburst\tsent\tframes at the relay\tlost: packets of 256\tqueue of 128\tqueue of 32\tengine's queue of 512"+
		"\tour ring, oldest\tgiven to quic-go\tframes at the receiver\tpackets dropped there\tlongest SendDatagram")
	for kind := range strings.SplitSeq(o.kinds, ",") {
		if kind == "udp" || kind == "wss" {
			continue
		}
		for text := range strings.SplitSeq(o.bursts, ",") {
			n, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("--bursts: %q: want a number", text)
			}
			l, err := measureBurst(o, kind, n)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%v\n", kind, n, l.sent, l.frames, l.packets, l.queue, l.http, l.busy,
				l.oldest, l.handed, l.arrived, l.late, l.longest.Round(100*time.Microsecond))
		}
	}
	return w.Flush()
}

func measureBurst(o options, kind string, n int) (l lost, err error) {
	p, _, _, err := startPair(o, kind, 2, true)
	if err != nil {
		return l, err
	}
	defer p.stop()
	var from, to playerFigures
	var before, after figures
	if err := errors.Join(p.relay.ask("figures", &before, time.Minute), p.players.ask("figures", &from, time.Minute)); err != nil {
		return l, err
	}
	for range o.rounds {
		if err := p.players.ask("burst "+strconv.Itoa(n), &to, time.Minute); err != nil {
			return l, err
		}
	}
	if err := p.relay.ask("figures", &after, time.Minute); err != nil {
		return l, err
	}
	l = lost{
		sent: to.Sent - from.Sent, frames: after.Frames - before.Frames, queue: after.Queue - before.Queue,
		packets: after.Packets - before.Packets, busy: after.Busy - before.Busy, oldest: after.Oldest - before.Oldest,
		handed: after.Handed - before.Handed, arrived: to.Frames - from.Frames,
		late: to.Packets - from.Packets, longest: time.Duration(after.Longest),
	}
	l.http = l.frames - l.queue - (after.Received - before.Received)
	return l, nil
}
