package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/proto"
)

const (
	framePayload   = 112 // bytes of content of a RELAY
	frameUDP       = 8 + proto.RelayOverhead + framePayload
	frameLen       = 14 + 20 + frameUDP
	maxFrameBurst  = 256
	latencyBuckets = 16384  // of a microsecond, as in frames.c
	firstByte      = 0xDA   // of a RELAY
	liveFrames     = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	// lateness is the share of the rate that a generator may miss.
	lateness = 0.02
	// lostFrames is the share of lost datagrams from which a run does not count.
	lostFrames = 0.02
)

// frameGenerator sends frames of players from the generator's end of the pair, by a program
// in the kernel, and counts those that the relay sends to them. One goroutine uses it.
type frameGenerator struct {
	coll     *ebpf.Collection
	attached link.Link
	link     *net.Interface
	relayMAC net.HardwareAddr
	template []byte
	players  uint32
	runRate  float64 // the most runs of the program per second so far
}

func newFrameGenerator(ctx context.Context, o framesOptions) (g *frameGenerator, err error) {
	for _, argv := range [][]string{
		{"ip", "route", "add", "local", framesSources, "dev", "lo"},
		{"ip", "netns", "exec", o.relaySpace, "ip", "route", "add", framesSources, "via", vethGenerator},
		{"ping", "-c", "1", "-W", "5", vethRelay}, // resolves the neighbours
	} {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil && argv[0] != "ping" {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
	}
	g = &frameGenerator{runRate: 1e6}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	mac, err := exec.CommandContext(ctx, "ip", "netns", "exec", o.relaySpace, "cat", "/sys/class/net/generator/address").Output()
	if err != nil {
		return g, err
	}
	if g.relayMAC, err = net.ParseMAC(strings.TrimSpace(string(mac))); err != nil {
		return g, err
	}
	if g.link, err = net.InterfaceByName("relays"); err != nil {
		return g, err
	}
	spec, err := ebpf.LoadCollectionSpec(o.bin("frames.o"))
	if err != nil {
		return g, err
	}
	spec.Maps["players"].MaxEntries = 1_100_000
	if g.coll, err = ebpf.NewCollection(spec); err != nil {
		return g, err
	}
	g.attached, err = link.AttachXDP(link.XDPOptions{Interface: g.link.Index, Program: g.coll.Programs["receive"], Flags: link.XDPDriverMode})
	return g, err
}

func (g *frameGenerator) close() {
	if g.attached != nil {
		g.attached.Close()
	}
	if g.coll != nil {
		g.coll.Close()
	}
}

func (g *frameGenerator) set(name string, value any) error { return g.coll.Variables[name].Set(value) }

// fill gives the program the RELAYs of all players to their peers, in both directions.
func (g *frameGenerator) fill(relay netip.AddrPort, players []framePlayer, joiners int, star bool) error {
	g.template = make([]byte, 0, frameLen)
	g.template = append(append(g.template, g.relayMAC...), g.link.HardwareAddr...)
	g.template = append(g.template, 8, 0, 0x45, 0)
	g.template = binary.BigEndian.AppendUint16(g.template, 20+frameUDP)
	g.template = append(g.template, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0)
	g.template = append(g.template, relay.Addr().AsSlice()...)
	for _, n := range []uint16{playersPort, relay.Port(), frameUDP, 0} {
		g.template = binary.BigEndian.AppendUint16(g.template, n)
	}
	g.template = proto.Relay{Payload: make([]byte, framePayload)}.Append(g.template)
	v := g.coll.Variables["template"]
	if err := v.Set(g.template[:v.Size()]); err != nil {
		return err
	}
	g.players = 0
	add := func(from, to *framePlayer, first byte) error {
		err := g.coll.Maps["players"].Put(g.players, g.entry(from, to, first))
		g.players++
		return err
	}
	for i := range players {
		p := &players[i]
		if p.host == i {
			continue
		}
		host, first := &players[p.host], byte(firstByte)
		if star {
			first = byte(i - p.host)
		}
		if err := errors.Join(add(p, host, firstByte), add(host, p, first)); err != nil {
			return err
		}
	}
	return errors.Join(g.set("count", g.players), g.set("relay_port", swap16(relay.Port())), g.set("udp_length", swap16(frameUDP)))
}

// swap16 is a number in network byte order.
func swap16(n uint16) uint16 { return n<<8 | n>>8 }

// entry is a struct player of frames.c.
func (g *frameGenerator) entry(from, to *framePlayer, first byte) []byte {
	frame := append([]byte(nil), g.template...)
	ip, udp := frame[14:34], frame[34:]
	copy(ip[12:], from.addr.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(0, ip))
	msg := udp[8:]
	msg[0] = first
	copy(msg[4:], from.id[:])
	copy(msg[20:], to.id[:])
	var pseudo uint32
	for i := 12; i < 20; i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	// The time of sending and its complement add 0xffff, which is nothing, per pair of bytes.
	check := checksum(pseudo+17+frameUDP, udp)
	if check == 0 {
		check = 0xffff
	}
	b := append([]byte(nil), ip[12:16]...)
	b = append(b, ip[10], ip[11])
	b = binary.BigEndian.AppendUint16(b, check)
	b = append(append(b, from.id[:]...), to.id[:]...)
	return append(b, first, 0, 0, 0)
}

// checksum is the checksum of the internet (RFC 1071) over a sum and bytes of an even number.
func checksum(sum uint32, b []byte) uint16 {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// all sends one datagram of each player, at a moderate rate.
func (g *frameGenerator) all(ctx context.Context) error {
	if err := errors.Join(g.set("sequential", uint32(1)), g.set("next", uint32(0))); err != nil {
		return err
	}
	_, err := g.pace(ctx, load{50_000, 32}, time.Duration(g.players)*20*time.Microsecond+10*time.Millisecond)
	return errors.Join(err, g.set("sequential", uint32(0)))
}

// startup is the time that the kernel may take before it runs the program.
const startup = 20 * time.Millisecond

// pace sends at a rate for so long, and returns how many it sent.
func (g *frameGenerator) pace(ctx context.Context, l load, d time.Duration) (sent uint64, err error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, err
	}
	due := uint64(now.Nano() + startup.Nanoseconds())
	err = errors.Join(
		g.set("due", due), g.set("end", due+uint64(d.Nanoseconds())), g.set("sent", uint64(0)), g.set("burst", uint32(l.Burst)),
		g.set("interval", uint64(float64(l.Burst)/l.Rate*1e9)))
	if err != nil {
		return 0, err
	}
	// struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
	md := make([]byte, 24)
	binary.NativeEndian.PutUint32(md[4:], frameLen)
	binary.NativeEndian.PutUint32(md[12:], uint32(g.link.Index))
	// A call ends after so many runs of the program, most of which find nothing due.
	for begin := time.Now(); time.Since(begin) < d+startup && ctx.Err() == nil; {
		runs := g.runRate * (d + 2*startup - time.Since(begin)).Seconds()
		called := time.Now()
		_, err = g.coll.Programs["send"].Run(&ebpf.RunOptions{
			Data: g.template, Context: md, Repeat: uint32(min(runs, 1<<31)), BatchSize: uint32(min(l.Burst, 64)), Flags: liveFrames,
		})
		if err != nil {
			return 0, err
		}
		g.runRate = max(g.runRate, runs/time.Since(called).Seconds())
	}
	err = g.coll.Variables["sent"].Get(&sent)
	return sent, errors.Join(err, ctx.Err())
}

// run measures one load.
func (g *frameGenerator) run(ctx context.Context, o framesOptions, srv *server, poller int, one *framesSample) error {
	one.Bad = ""
	if _, err := g.pace(ctx, one.Load, o.warmup); err != nil {
		return err
	}
	kernel := one.byProgram()
	var relayedBefore uint64
	var err error
	if kernel {
		if relayedBefore, err = relayed(ctx, srv); err != nil {
			return err
		}
	}
	time.Sleep(20 * time.Millisecond) // what is under way arrives
	if err := g.clear(); err != nil {
		return err
	}
	machineBefore, err := readProcessorTime()
	if err != nil {
		return err
	}
	before, err := cpuTime(srv.pid(), poller)
	if err != nil {
		return err
	}
	begin := time.Now()
	if one.Sent, err = g.pace(ctx, one.Load, o.duration); err != nil {
		return err
	}
	took := time.Since(begin)
	time.Sleep(20 * time.Millisecond)
	after, err := cpuTime(srv.pid(), poller)
	if err != nil {
		return err
	}
	machineAfter, err := readProcessorTime()
	if err != nil {
		return err
	}
	if err := g.coll.Variables["received"].Get(&one.Received); err != nil {
		return err
	}
	if kernel {
		if one.Kernel, err = relayed(ctx, srv); err != nil {
			return err
		}
		one.Kernel -= relayedBefore
	}
	one.Seconds = took.Seconds()
	one.CPU = float64(after-before) / float64(max(1, one.Received))
	if one.P50, one.P99, err = g.latency(one.Received); err != nil {
		return err
	}
	passed := machineAfter.sub(machineBefore)
	stolen := passed.steal / max(1, passed.total)
	switch {
	case stolen > maxSteal:
		one.Bad = fmt.Sprintf("the hypervisor took %.1f %% of the time", 100*stolen)
	case float64(one.Sent) < (1-lateness)*one.Load.Rate*o.duration.Seconds():
		one.Bad = fmt.Sprintf("the generator was late: %.0f/s", float64(one.Sent)/o.duration.Seconds())
	case float64(one.Received) < (1-lostFrames)*float64(one.Sent):
		one.Bad = fmt.Sprintf("%.1f %% lost", 100-100*float64(one.Received)/float64(max(1, one.Sent)))
	case kernel && one.Kernel < one.Received*9/10:
		one.Bad = fmt.Sprintf("only %d of %d by the program", one.Kernel, one.Received)
	}
	return nil
}

// clear sets the counters of received datagrams to zero.
func (g *frameGenerator) clear() error {
	zero := uint64(0)
	for i := range uint32(latencyBuckets) {
		if err := g.coll.Maps["latencies"].Put(i, zero); err != nil {
			return err
		}
	}
	return g.set("received", zero)
}

// latency returns two quantiles of the way through the relay, in µs.
func (g *frameGenerator) latency(received uint64) (p50, p99 float64, err error) {
	var n, sum uint64
	p50, p99 = -1, -1
	for i := range uint32(latencyBuckets) {
		if err := g.coll.Maps["latencies"].Lookup(i, &n); err != nil {
			return 0, 0, err
		}
		sum += n
		if p50 < 0 && sum*2 >= received {
			p50 = float64(i)
		}
		if p99 < 0 && sum*100 >= received*99 {
			p99 = float64(i)
		}
	}
	return p50, p99, nil
}

// cpuTime is the time on a processor of all threads of a process and of a kernel thread.
func cpuTime(process, thread int) (sum time.Duration, err error) {
	threads, err := procfs.AllThreads(process)
	if err != nil {
		return 0, err
	}
	poller, err := procfs.NewProc(thread)
	if err != nil {
		return 0, err
	}
	for _, one := range append(threads, poller) {
		s, err := one.Schedstat()
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return 0, err
		}
		sum += time.Duration(s.RunningNanoseconds)
	}
	return sum, nil
}

// bounce attaches the program that only turns frames round to the relay's end, until ctx ends.
func bounce(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("bounce: 2 arguments")
	}
	addr, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	i, err := net.InterfaceByName("generator")
	if err != nil {
		return err
	}
	spec, err := ebpf.LoadCollectionSpec(args[0])
	if err != nil {
		return err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	defer coll.Close()
	if err := errors.Join(coll.Variables["relay_port"].Set(swap16(addr.Port())),
		coll.Variables["udp_length"].Set(swap16(frameUDP))); err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{Interface: i.Index, Program: coll.Programs["bounce"], Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(addr)
	<-ctx.Done()
	return nil
}
