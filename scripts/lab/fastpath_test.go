//go:build lab && linux

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

type fastCase struct {
	mode string // of the setting xdp
	v6   bool
	// wildcard: the relay listens on all addresses, and each side plays with that of its own
	// link. Otherwise it has one address, of loopback, for all.
	wildcard bool
	routed   bool // there is a router, see NewRoutedNetwork
}

func (c fastCase) String() string {
	name := c.mode + " IPv4"
	if c.v6 {
		name = c.mode + " IPv6"
	}
	if c.wildcard {
		name += " wildcard"
	}
	return name
}

// newFastLab is newLab with the fast path, and a change of the configuration, if not nil.
func newFastLab(t *testing.T, c fastCase, change func(*RelayConfig)) *lab {
	t.Helper()
	testkit.Program(t, "ethtool", "ethtool")
	network := NewNetwork
	if c.routed {
		network = NewRoutedNetwork
	}
	return newLabIn(t, network, func(cfg *RelayConfig) {
		router := cfg.Network.Router
		if !c.routed {
			router = cfg.Network.Clients
			if err := cfg.Network.AddIPv6(); err != nil {
				t.Fatal(err)
			}
		}
		cfg.Flags = []string{"--xdp", c.mode, "--udp", RelayAddr.String(), "--udp", RelayAddr6.String()}
		if c.wildcard {
			cfg.Flags = []string{"--xdp", c.mode, "--udp", "0.0.0.0:7777", "--udp", "[::]:7777", "--advertise", RelayAddr.Addr().String(),
				"--advertise", RelayAddr6.Addr().String()}
		}
		if c.mode == "native" { // on a veth only by name
			cfg.Flags = append(cfg.Flags, "--xdp-interfaces", LinkClients, "--xdp-interfaces", LinkPeers)
		}
		if change != nil {
			change(cfg)
		}
		for _, ns := range []Namespace{router, cfg.Network.Peers} {
			if err := forXDP(ns); err != nil {
				t.Fatal(err)
			}
		}
		for _, family := range []string{"ipv4", "ipv6"} { // so that it notices soon that a neighbour is gone
			for knob, value := range map[string]string{"base_reachable_time_ms": "500", "delay_first_probe_time": "1"} {
				if err := cfg.Network.Relay.Set("net."+family+".neigh."+LinkClients+"."+knob, value); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func withFlags(flags ...string) func(*RelayConfig) {
	return func(c *RelayConfig) { c.Flags = append(c.Flags, flags...) }
}

// forXDP makes the link of a namespace to the relay fit for frames of XDP: players compute the
// checksums of their datagrams, which a veth would otherwise leave out, and a program of XDP is
// at this end, since a veth takes such frames only if it polls (NAPI). GRO makes it poll as well,
// but on Linux 6.18 it may then stop after a few frames.
func forXDP(ns Namespace) error {
	return errors.Join(run("ip", "netns exec "+ns.Name+" ethtool -K relay tx off"), ns.passXDP())
}

// passXDP attaches a program that passes every frame to the relay's link of a namespace, where it
// stays until the link is gone.
func (n Namespace) passXDP() error {
	return n.Do(func() error {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP,
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
		if err != nil {
			return err
		}
		defer program.Close()
		link, err := netlink.LinkByName("relay")
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(link, program.FD(), nl.XDP_FLAGS_DRV_MODE)
	})
}

// xdpPass is XDP_PASS of linux/bpf.h.
const xdpPass = 2

func (l *lab) fastPlayers(matches int, c fastCase) FleetConfig {
	cfg := l.players(matches, 30)
	if c.v6 {
		cfg.Hosts.First, cfg.Hosts.Via = FirstPeer6, RelayAddr6
		cfg.Joiners.First, cfg.Joiners.Via = FirstClient6, RelayAddr6
	}
	if c.wildcard {
		hosts, joiners := "198.51.100.5:7777", "198.51.100.1:7777"
		if c.v6 {
			hosts, joiners = "[2001:db8:2::1]:7777", "[2001:db8:1::1]:7777"
		}
		cfg.Hosts.Via, cfg.Joiners.Via = netip.MustParseAddrPort(hosts), netip.MustParseAddrPort(joiners)
	}
	return cfg
}

// requireFast waits until the program relays nearly all datagrams, and checks that every
// match carries traffic.
func (l *lab) requireFast(f *Fleet, what string) {
	l.Helper()
	var fast, all float64
	testkit.Within(l.T, 40*time.Second, "the program relays nearly everything "+what, func() bool {
		fast, all = l.fastShare()
		return fast > 100 && fast > 0.9*all
	})
	l.requireTraffic(f, 20*time.Second)
	l.Logf("%s: %.0f of %.0f datagrams went by the program", what, fast, all)
}

// requireSockets waits until datagrams are relayed, and none by the program.
func (l *lab) requireSockets(f *Fleet, what string) {
	l.Helper()
	testkit.Within(l.T, 40*time.Second, "all datagrams go through the sockets "+what, func() bool {
		fast, all := l.fastShare()
		return fast == 0 && all > 100
	})
	l.requireTraffic(f, 20*time.Second)
}

// fastShare returns how many datagrams the program and all relayed within half a second.
func (l *lab) fastShare() (fast, all float64) {
	const relayed = `ferry_outcomes_total{outcome="relayed"}`
	before, relayedBefore := l.metric("ferry_fast_datagrams_total"), l.metric(relayed)
	time.Sleep(500 * time.Millisecond)
	return l.metric("ferry_fast_datagrams_total") - before, l.metric(relayed) - relayedBefore
}

// TestFastPath plays matches whose datagrams go by the program in the kernel, while clients
// roam, the network of the relay changes, and the relay is killed.
func TestFastPath(t *testing.T) {
	for _, c := range []fastCase{
		{mode: "tc"}, {mode: "tc", v6: true}, {mode: "tc", wildcard: true},
		{mode: "native", wildcard: true}, {mode: "native", v6: true, wildcard: true},
	} {
		t.Run(c.String(), func(t *testing.T) {
			l := newFastLab(t, c, nil)
			cfg := l.fastPlayers(20, c)
			cfg.Ports, cfg.RoamEvery = 8, time.Second
			f, _ := l.fleet(cfg)
			l.requireFast(f, "at first")
			testkit.Within(t, 30*time.Second, "clients roam", func() bool { return f.Counts().Roams > 40 })
			if c == (fastCase{mode: "tc"}) || *long {
				l.changeNetwork(f, c)
			}
			l.restartFast(f)
			l.requireNoFailures(f.Counts())
		})
	}
}

// translated are rules of nftables by which players reach the relay at port 9999, one by a redirect
// and one at an address by DNAT.
const translated = `table inet translated {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr 203.0.113.77 udp dport 9999 redirect to :7777
		ip6 daddr 2001:db8:77::77 udp dport 9999 redirect to :7777
		ip daddr 198.51.100.1 udp dport 9999 dnat ip to 203.0.113.77:7777
		ip6 daddr 2001:db8:1::1 udp dport 9999 dnat ip6 to [2001:db8:77::77]:7777
	}
}
`

// TestFastPathTranslated: players whose datagrams nftables redirects before the relay's socket get
// replies from the address that they send to, so by the sockets; their peers send by the program.
func TestFastPathTranslated(t *testing.T) {
	testkit.Program(t, "nft", "nftables")
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte(translated), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		form fastCase
		via  string
	}{
		{fastCase{mode: "auto", wildcard: true}, "203.0.113.77:9999"}, {fastCase{mode: "auto"}, "198.51.100.1:9999"},
		{fastCase{mode: "auto", v6: true, wildcard: true}, "[2001:db8:77::77]:9999"}, {fastCase{mode: "tc", v6: true}, "[2001:db8:1::1]:9999"},
		{fastCase{mode: "native", wildcard: true}, "198.51.100.1:9999"},
	} {
		t.Run(row.form.String()+" "+row.via, func(t *testing.T) {
			l := newFastLab(t, row.form, nil)
			if err := run("ip", "netns exec "+l.net.Relay.Name+" nft -f "+rules); err != nil {
				t.Fatal(err)
			}
			direct, _ := l.fleet(l.fastPlayers(10, row.form))
			l.requireFast(direct, "without a translation")
			cfg := l.fastPlayers(10, row.form)
			for range 100 {
				cfg.Hosts.First, cfg.Joiners.First = cfg.Hosts.First.Next(), cfg.Joiners.First.Next()
			}
			cfg.Joiners.Via = netip.MustParseAddrPort(row.via)
			f, _ := l.fleet(cfg)
			before := f.SettleTo(0)
			testkit.Within(t, 40*time.Second, "they play", func() bool { return f.Counts().Received > before.Received+500 })
			if c := f.SettleTo(0).Since(before); c.Lost() > 0 || c.Unexpected > 0 || c.Binds > 0 {
				t.Errorf("translated: %v", c)
			}
			if l.metric(`ferry_fast_passed_total{reason="unseen"}`) < 100 {
				t.Error("the program sends to players whose addresses are translated")
			}
			l.requireNoFailures(direct.Counts())
		})
	}
}

func (l *lab) changeNetwork(f *Fleet, c fastCase) {
	l.Helper()
	family := "-4"
	if c.v6 {
		family = "-6"
	}
	relay := func(args string) {
		l.Helper()
		if err := l.net.Relay.IP(family + " " + args); err != nil {
			l.Fatal(err)
		}
	}
	relay("rule add to " + map[string]string{"-4": "192.0.2.0/24", "-6": "2001:db8:99::/64"}[family] + " table 99")
	l.requireSockets(f, "while there is a routing rule")
	relay("rule del table 99")
	l.requireFast(f, "without the rule")

	l.ctl("fast-path", "off")
	l.requireSockets(f, "while it is off by request")
	l.ctl("fast-path", "on")
	l.requireFast(f, "on again")

	route := map[string]string{"-4": clientsRange + " via " + clientsWire, "-6": clientsRange6 + " via 2001:db8:1::2"}[family]
	relay("route replace " + route + " mtu 1400")
	l.requireFast(f, "by a route with an MTU")
	relay("route replace " + route)

	if err := l.net.Clients.IP("link set relay address 02:00:00:00:00:99"); err != nil {
		l.Fatal(err)
	}
	l.requireFast(f, "after the neighbour's address changed")

	if err := l.net.Relay.IP("link set " + LinkClients + " down"); err != nil {
		l.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := l.net.Relay.IP("link set " + LinkClients + " up"); err != nil {
		l.Fatal(err)
	}
	if c.v6 { // The kernel has removed its addresses with the link.
		relay("addr replace 2001:db8:1::1/64 dev " + LinkClients + " nodad")
	}
	relay("route replace " + route)
	l.requireFast(f, "after the link was down")
	if !c.v6 {
		l.replaceLink(LinkClients)
		l.requireFast(f, "by an interface that was removed and made again")
	}
}

func (l *lab) replaceLink(name string) {
	l.Helper()
	for _, link := range l.net.links() {
		if link.name != name {
			continue
		}
		for _, err := range []error{
			l.net.Relay.IP("link del " + name), link.far.IP("route del local " + link.local + " dev lo"), link.build(false), forXDP(link.far),
		} {
			if err != nil {
				l.Fatal(err)
			}
		}
	}
}

func (l *lab) ctl(args ...string) string {
	l.Helper()
	out, err := l.tryCtl(args...)
	if err != nil {
		l.Fatal(err)
	}
	return out
}

// tryCtl is ctl with its error, which has the output too.
func (l *lab) tryCtl(args ...string) (string, error) {
	argv := append([]string{"netns", "exec", l.net.Relay.Name, ferry, "ctl"}, args...)
	out, err := exec.Command("ip", argv...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ferry ctl %v: %w: %s", args, err, out)
	}
	return string(out), err
}

// restartFast kills the relay. The sockets of the next one get the datagrams, and then its
// program.
func (l *lab) restartFast(f *Fleet) {
	l.Helper()
	l.relay.Kill()
	if out := l.programs(); strings.Contains(out, "relay_") {
		l.Errorf("the program of a process that was killed is still attached:\n%s", out)
	}
	l.start()
	l.requireFast(f, "after kill -9 and a restart")
}

func (l *lab) programs() string {
	out, err := exec.Command("ip", "-n", l.net.Relay.Name, "-details", "link").CombinedOutput()
	if err != nil {
		l.Fatal(err)
	}
	return string(out)
}

// TestFastPathExpiry: matches whose datagrams go by the program alone stay alive, and expire
// when they stop.
func TestFastPathExpiry(t *testing.T) {
	l := newFastLab(t, fastCase{mode: "tc"}, withFlags("--idle-timeout", "4s", "--host-alone-timeout", "4s"))
	cfg := l.fastPlayers(20, fastCase{mode: "tc"})
	cfg.PingEvery = time.Hour // Only RELAYs keep the matches alive.
	f, _ := l.fleet(cfg)
	l.requireFast(f, "at first")
	for range 3 {
		time.Sleep(4500 * time.Millisecond)
		l.requireFast(f, "after more than a time limit")
	}
	l.requireNoFailures(f.Counts())
	if n := l.metric("ferry_allocations"); n != 40 {
		t.Errorf("%.0f allocations live, want 40", n)
	}
	f.pause(true)
	testkit.Within(t, 30*time.Second, "all allocations expire", func() bool { return l.metric("ferry_allocations") == 0 })
}

// TestFastPathDriver: when a driver drops what the program sends, from the beginning or later, the
// relay detaches the program by itself, and attaches it again when it is asked to.
func TestFastPathDriver(t *testing.T) {
	for _, plays := range []bool{true, false} {
		t.Run(fmt.Sprintf("plays before: %t", plays), func(t *testing.T) {
			c := fastCase{mode: "native", wildcard: true}
			l := newFastLab(t, c, nil)
			cfg := l.fastPlayers(20, c)
			hosts := cfg.Joiners // on the same link: drivers count what they drop of XDP_TX
			for range 100 {
				hosts.First = hosts.First.Next()
			}
			cfg.Hosts = hosts
			// Without a program at its end a veth takes no frames of XDP.
			remove := func() {
				if err := l.net.Clients.IP("link set relay xdpdrv off"); err != nil {
					t.Fatal(err)
				}
			}
			if !plays {
				remove()
			}
			f, _ := l.fleet(cfg)
			if plays {
				l.requireFast(f, "at first")
				remove()
			}
			began := time.Now()
			testkit.Within(t, 30*time.Second, "the program is off", func() bool { return l.metric("ferry_fast_on") == 0 })
			t.Logf("the program is off %v after the driver began to drop", time.Since(began).Round(time.Millisecond))
			l.requireSockets(f, "when the driver drops what the program sends")
			if out := l.programs(); strings.Contains(out, "relay_") {
				t.Errorf("the program is still attached:\n%s", out)
			}
			if out := l.ctl("fast-path"); !strings.Contains(out, "off, native") || !strings.Contains(out, "the driver of ") {
				t.Errorf("ferry ctl fast-path:\n%s", out)
			}
			if err := forXDP(l.net.Clients); err != nil {
				t.Fatal(err)
			}
			l.ctl("fast-path", "on")
			l.requireFast(f, "when it was asked to try again")
		})
	}
}

// TestFastPathQuota: the program counts against the quota of the sockets, and leaves what is
// beyond it to them, which drop it.
func TestFastPathQuota(t *testing.T) {
	l := newFastLab(t, fastCase{mode: "tc"}, withFlags("--joiner-datagrams", "10", "--host-datagrams", "10"))
	l.fleet(l.fastPlayers(5, fastCase{mode: "tc"}))
	drops := `ferry_drops_total{reason="rate"}`
	testkit.Within(t, 30*time.Second, "datagrams are dropped", func() bool { return l.metric(drops) > 200 })
	const relayed = `ferry_outcomes_total{outcome="relayed"}`
	before, began := l.metric(relayed), time.Now()
	time.Sleep(4 * time.Second)
	rate := (l.metric(relayed) - before) / time.Since(began).Seconds() / 10
	if rate < 8 || rate > 12 {
		t.Errorf("%.1f datagrams a second of each player are relayed, want 10", rate)
	}
	if l.metric("ferry_fast_datagrams_total") == 0 || l.metric(`ferry_fast_passed_total{reason="rate"}`) == 0 {
		t.Error("the program relayed nothing, or left nothing to the sockets")
	}
}

// TestFastPathCapabilities runs ferry as another user than root. With three capabilities the
// program is attached. Without them "auto" says so in one line and relays through the
// sockets, and "tc" does not start.
func TestFastPathCapabilities(t *testing.T) {
	testkit.Program(t, "setpriv", "util-linux")
	l := newLab(t, nil)
	address := netip.AddrPortFrom(RelayAddr.Addr(), relayPort+10).String() // beside another relay
	const admin = "127.0.0.1:7790"
	for _, c := range []struct {
		mode, caps string
		logs       string // a part of the log, or of the error
		starts     bool
	}{
		{"tc", "+bpf,+net_admin,+perfmon", `"mode":"tc"`, true},
		{"auto", "+bpf,+net_admin,+perfmon", `"mode":"tc"`, true},
		{"auto", "+net_admin", "the process lacks CAP_BPF and CAP_PERFMON", true},
		{"auto", "+bpf,+net_admin", "the process lacks CAP_PERFMON", true},
		{"auto", "", "the process lacks CAP_BPF and CAP_NET_ADMIN and CAP_PERFMON", true},
		{"tc", "", "the fast path is not available: the kernel asks for the capabilities", false},
	} {
		t.Run(c.mode+" "+c.caps, func(t *testing.T) {
			var log string
			dir := t.TempDir()
			if err := errors.Join(os.Chmod(filepath.Dir(ferry), 0o755), os.Chmod(filepath.Dir(dir), 0o755),
				os.Chown(dir, nobody, nobody)); err != nil {
				t.Fatal(err)
			}
			all := strings.TrimSuffix("-all,"+c.caps, ",")
			p, err := StartProcess(ProcessConfig{
				In: l.net.Relay, Path: "setpriv", Log: filepath.Join(t.TempDir(), "log"), Ready: FerryReady,
				Args: []string{
					"--reuid", strconv.Itoa(nobody), "--regid", strconv.Itoa(nobody), "--clear-groups",
					"--inh-caps", all, "--ambient-caps", all, "--bounding-set", all,
					ferry, "dev", "--udp", address, "--http", address, "--admin", admin,
					"--state-dir", dir, "--log-format", "json", "--xdp", c.mode,
				},
			})
			if err == nil {
				defer p.Kill()
				log = p.Log()
			} else {
				log = err.Error()
			}
			if err == nil && c.caps != "+bpf,+net_admin,+perfmon" {
				if state := l.ctl("fast-path", "--admin", "http://"+admin); !strings.Contains(state, c.logs) {
					t.Errorf("ferry ctl fast-path does not say %q:\n%s", c.logs, state)
				}
			}
			if (err == nil) != c.starts || strings.Count(log, c.logs) == 0 {
				t.Errorf("starts: %v; want %t and %q in\n%s", err, c.starts, c.logs, log)
			}
		})
	}
}

const nobody = 65534
