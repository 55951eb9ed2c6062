//go:build lab && linux

package lab

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Flags of the long forms, which check all goals.
var (
	binaryFlag     = flag.String("ferry", "", "test this binary; empty builds one")
	xdpFlag        = flag.String("xdp", "", "setting xdp of the relay in all tests")
	long           = flag.Bool("long", false, "check every goal, including those of time")
	floodDuration  = flag.Duration("flood.duration", 3*time.Second, "of each flood")
	attackDuration = flag.Duration("attack.duration", 3*time.Second, "of each attack of TestAttack")
	faultDuration  = flag.Duration("fault.duration", 4*time.Second, "of pauses and of links that are down")
	recoverMatches = flag.Int("recover.matches", 50, "matches during which the relay is killed")
	stormClients   = flag.Int("storm.clients", 100, "clients that change their port each second")
	stormDuration  = flag.Duration("storm.duration", 4*time.Second, "of the roam storm")
	memoryCap      = flag.Int("memory.cap", 256, "MiB that the relay may use")
	slowDuration   = flag.Duration("slow.duration", 5*time.Second, "of regular calls among slow clients")
	slowCallers    = flag.Int("slow.callers", 5000, "slow connections to the API")
	soakDuration   = flag.Duration("soak.duration", 8*time.Second, "of the soak test")
	memoryDuration = flag.Duration("memory.duration", 4*time.Second, "of flood and allocations under the memory cap")
)

var ferry string

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == echoCommand {
		if err := echoClient(os.Args[2:]); err != nil {
			fmt.Println("ended:", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	dir, err := os.MkdirTemp("", "ferrylab")
	if ferry = *binaryFlag; err == nil && ferry == "" {
		ferry, err = Binary(dir)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	printAttacks(os.Stdout)
	os.RemoveAll(dir)
	os.Exit(code)
}

type lab struct {
	*testing.T
	net   *Network
	relay *Relay
	cfg   RelayConfig
	rng   *rand.Rand
	slow  bool // the last flood did not reach its rate
}

// newLab creates a network and starts the relay. Both end with the test, which
// fails if the relay has ended before.
func newLab(t *testing.T, change func(*RelayConfig)) *lab {
	t.Helper()
	return newLabIn(t, NewNetwork, change)
}

// newLabIn is newLab with a network of another kind.
func newLabIn(t *testing.T, network func() (*Network, error), change func(*RelayConfig)) *lab {
	t.Helper()
	if why := Missing(); why != "" {
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	n, err := network()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &lab{T: t, net: n, rng: rand.New(rand.NewPCG(42, 42))}
	l.cfg = RelayConfig{Network: n, Binary: ferry, Dir: t.TempDir()}
	if *xdpFlag != "" {
		l.cfg.Env = append(l.cfg.Env, "FERRY_XDP="+*xdpFlag)
	}
	if change != nil {
		change(&l.cfg)
	}
	l.start()
	t.Cleanup(func() {
		if err := l.relay.Stop(); err != nil {
			t.Errorf("%v; log: %s", err, l.relay.Log())
		}
	})
	return l
}

func (l *lab) start() {
	l.Helper()
	var err error
	if l.relay, err = StartRelay(l.cfg); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) players(matches, rate int) FleetConfig {
	return FleetConfig{
		Hosts: SideConfig{Do: l.net.Peers.Do, First: FirstPeer}, Joiners: SideConfig{Do: l.net.Clients.Do, First: FirstClient},
		Relay: RelayAddr, Matches: matches, Rate: rate, Payload: 64, Seed: 42,
	}
}

func (l *lab) fleet(cfg FleetConfig) (*Fleet, []string) {
	l.Helper()
	f := l.emptyFleet(cfg)
	return f, l.addMatches(f)
}

func (l *lab) emptyFleet(cfg FleetConfig) *Fleet {
	l.Helper()
	f, err := NewFleet(cfg)
	if err != nil {
		l.Fatal(err)
	}
	l.background(func(ctx context.Context) {
		if err := f.Run(ctx); err != nil {
			l.Error(err)
		}
	})
	return f
}

func (l *lab) addMatches(f *Fleet) []string {
	l.Helper()
	cfg := &f.cfg
	codes, err := AddMatches(l.Context(), l.relay.API(l.net.Clients, 0), f, cfg.Matches)
	if err != nil {
		l.Fatal(err)
	}
	ready := func(c Counts) bool {
		return c.Bound == 2*cfg.Matches && (cfg.Rate == 0 || c.Playing == 2*cfg.Matches)
	}
	for range 2000 {
		c := f.Counts()
		if ready(c) {
			return codes
		}
		if c.Failed > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.Fatal("not all players play: ", f.Counts())
	return nil
}

// background runs f until the test ends.
func (l *lab) background(f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { f(ctx) })
	l.Cleanup(func() { cancel(); done.Wait() })
}

func (l *lab) spoofer(ns Namespace) *Spoofer {
	l.Helper()
	s, err := NewSpoofer(ns, RelayAddr.Addr())
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(s.Close)
	return s
}

func (l *lab) flood(rate int, d time.Duration, next func(n uint64) []byte) FloodResult {
	l.Helper()
	s := l.spoofer(l.net.Clients)
	defer s.Close()
	ctx, cancel := context.WithTimeout(l.Context(), d)
	defer cancel()
	o := s.Flood(ctx, rate, next)
	l.Logf("offered %.0f datagrams/s for %v, %d refused", o.PerSecond(), o.Elapsed.Round(time.Millisecond), o.Failed)
	l.slow = *long && o.Slow()
	if l.slow {
		l.Logf("the generator did not reach %d/s: without damage this run decides nothing", rate)
	}
	if o.Sent == 0 {
		l.Error("nothing was offered")
	}
	return o
}

// spoofedPackets returns a function that returns packets from random sources.
// They repeat 4,096 payloads.
func (l *lab) spoofedPackets(payload func() []byte) func(n uint64) []byte {
	packets := make([][]byte, 4096)
	for i := range packets {
		packets[i] = AppendIPv4UDP(nil, RandomSource(l.rng), RelayAddr, payload())
	}
	return func(n uint64) []byte {
		p := packets[n%uint64(len(packets))]
		SetSource(p, RandomSource(l.rng))
		return p
	}
}

func (l *lab) counter(ns Namespace, to netip.Prefix) *Counter {
	l.Helper()
	c, err := NewCounter(ns, to)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(c.Close)
	return c
}

// rss returns the relay's resident memory in bytes.
func (l *lab) rss() int {
	l.Helper()
	n, err := l.relay.RSS()
	if err != nil {
		l.Fatal(err)
	}
	return n
}

func (l *lab) metric(name string) float64 {
	l.Helper()
	all, err := l.relay.Metrics()
	if err != nil {
		l.Fatal(err)
	}
	return all[name]
}

const (
	datagramsIn  = `ferry_datagrams_total{direction="in"}`
	datagramsOut = `ferry_datagrams_total{direction="out"}`
	kernelDrops  = `ferry_kernel_drops_total`
)

func (l *lab) requireTraffic(f *Fleet, within time.Duration) {
	l.Helper()
	f.Mark()
	matches := f.Counts().Players / 2
	if !testkit.Poll(within, func() bool { return f.Resumed(within) >= matches }) {
		l.Errorf("%d of %d matches carry traffic both ways; %v", f.Resumed(within), matches, f.Counts())
	}
}

func (l *lab) requireNoFailures(c Counts) {
	l.Helper()
	if c.Fatal() > 0 || c.Failed > 0 || c.Disconnects > 0 || c.Unexpected > 0 {
		l.Errorf("games were ended or disturbed: %v", c)
	}
}

const mebi = 1 << 20

// waitDrained waits until the sockets of the relays stay empty and hardly a datagram is
// counted: a flood is over, while players may go on. A relay without processor time
// would otherwise answer during the next test step.
func (l *lab) waitDrained(relays ...Namespace) {
	l.Helper()
	empty := func() bool {
		return !slices.ContainsFunc(relays, l.hasQueuedDatagrams)
	}
	const batch = 64 // a flood has many in each batch of a worker
	testkit.Eventually(l.T, "the relay takes what was sent to it", func() bool {
		if !empty() {
			return false
		}
		in := l.metric(datagramsIn)
		time.Sleep(20 * time.Millisecond)
		return empty() && l.metric(datagramsIn)-in < batch
	})
}

func (l *lab) hasQueuedDatagrams(ns Namespace) bool {
	l.Helper()
	for _, file := range []string{"udp", "udp6"} {
		for _, row := range l.procNetFields(ns, file) {
			// Columns of proc(5): number, local address, remote one, state, queues.
			if len(row) > 4 && strings.HasSuffix(row[1], fmt.Sprintf(":%04X", relayPort)) && !strings.HasSuffix(row[4], ":00000000") {
				return true
			}
		}
	}
	return false
}

// droppedDatagrams returns how many datagrams the kernel has dropped before the
// relay or the players could read them.
func (l *lab) droppedDatagrams() (n uint64) {
	l.Helper()
	for _, ns := range []Namespace{l.net.Clients, l.net.Relay, l.net.Peers} {
		var names []string
		for _, row := range l.procNetFields(ns, "snmp") {
			if len(row) == 0 || row[0] != "Udp:" {
				continue
			}
			for i, name := range names {
				if name == "RcvbufErrors" {
					n += l.parseUint(row[i], 10)
				}
			}
			names = row
		}
	}
	for _, row := range l.procNetFields(l.net.Relay, "softnet_stat") { // It counts for all namespaces.
		if len(row) > 1 {
			n += l.parseUint(row[1], 16)
		}
	}
	return n
}

func (l *lab) procNetFields(ns Namespace, file string) (rows [][]string) {
	l.Helper()
	var raw []byte
	err := ns.Do(func() (err error) {
		raw, err = os.ReadFile("/proc/thread-self/net/" + file)
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

func (l *lab) parseUint(word string, base int) uint64 {
	l.Helper()
	n, err := strconv.ParseUint(word, base, 64)
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// TestQueuedDatagrams verifies that datagrams in the socket buffers of a
// stopped relay, and drops at full buffers, are detected.
func TestQueuedDatagrams(t *testing.T) {
	l := newLab(t, nil)
	l.waitDrained(l.net.Relay)
	if l.hasQueuedDatagrams(l.net.Relay) {
		t.Error("datagrams wait before any was sent")
	}
	before := l.droppedDatagrams()
	l.whileStopped(func() {
		for end := time.Now().Add(20 * time.Second); l.droppedDatagrams() == before && time.Now().Before(end); {
			l.flood(50_000, 200*time.Millisecond, l.spoofedPackets(func() []byte { return []byte{1, 2} }))
		}
		if !l.hasQueuedDatagrams(l.net.Relay) {
			t.Error("no datagrams wait in the sockets of a relay that stands still")
		}
	})
	l.waitDrained(l.net.Relay)
	if n, counted := l.droppedDatagrams()-before, l.metric(kernelDrops); counted == 0 || float64(n) < counted {
		t.Errorf("%d datagrams were dropped, the relay knows of %v", n, counted)
	}
}
