//go:build lab && linux

package lab

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// firewall is a way to drop what comes from the players of a fleet, by scripts of sh.
type firewall struct {
	name     string
	programs string
	before   string // runs before they play
	block    string // empty: tc
	unblock  string
	within   time.Duration
}

const (
	// The kernel tells of these: far below the 5 s after which the program asks anyway.
	atOnce = 2 * time.Second
	soon   = 6 * time.Second

	blocked4 = "198.18.0.64/26,198.19.0.64/26"
	blocked6 = "2001:db8:18::40/122,2001:db8:19::40/122"
)

var firewalls = []firewall{
	{name: "nft rule", programs: "nft", within: atOnce,
		before:  "nft 'table inet fw { chain in { type filter hook input priority 0; }; }'",
		block:   "nft 'add rule inet fw in ip saddr { BLOCKED4 } drop; add rule inet fw in ip6 saddr { BLOCKED6 } drop'",
		unblock: "nft flush chain inet fw in"},
	{name: "nft tables of one family", programs: "nft", within: atOnce,
		block: `nft 'table ip fw { chain in { type filter hook prerouting priority -300; ip saddr { BLOCKED4 } drop; }; }
			table ip6 fw { chain in { type filter hook prerouting priority -300; ip6 saddr { BLOCKED6 } drop; }; }'`,
		unblock: "nft 'delete table ip fw; delete table ip6 fw'"},
	{name: "nft element", programs: "nft", within: atOnce,
		before: `nft 'table inet sets {
			set v4 { type ipv4_addr; flags interval; }
			set v6 { type ipv6_addr; flags interval; }
			chain in { type filter hook input priority 0; ip saddr @v4 drop; ip6 saddr @v6 drop; }; }'`,
		block:   "nft 'add element inet sets v4 { BLOCKED4 }; add element inet sets v6 { BLOCKED6 }'",
		unblock: "nft 'flush set inet sets v4; flush set inet sets v6'"},
	// The kernel may drop a datagram when it adds the qdisc, and none when it adds the filter.
	{name: "tc", programs: "tc", within: atOnce,
		before:  "tc qdisc add dev clients clsact; tc qdisc add dev peers clsact",
		unblock: "tc filter del dev clients ingress; tc filter del dev peers ingress"},
	{name: "iptables-nft", programs: "iptables-nft ip6tables-nft", within: atOnce,
		block:   "iptables-nft -A INPUT -s BLOCKED4 -j DROP; ip6tables-nft -A INPUT -s BLOCKED6 -j DROP",
		unblock: "iptables-nft -F INPUT; ip6tables-nft -F INPUT"},
	{name: "ipset", programs: "iptables-nft ip6tables-nft ipset", within: soon,
		before: `ipset create v4 hash:net; ipset create v6 hash:net family inet6
			iptables-nft -A INPUT -m set --match-set v4 src -j DROP; ip6tables-nft -A INPUT -m set --match-set v6 src -j DROP`,
		block:   "for i in $(echo BLOCKED4 | tr , ' '); do ipset add v4 $i; done; for i in $(echo BLOCKED6 | tr , ' '); do ipset add v6 $i; done",
		unblock: "ipset flush v4; ipset flush v6; iptables-nft -F INPUT; ip6tables-nft -F INPUT"},
	// While its older form has a table, auto is off: it is the last one.
	{name: "iptables-legacy", programs: "iptables-legacy ip6tables-legacy", within: soon,
		block:   "iptables-legacy -A INPUT -s BLOCKED4 -j DROP; ip6tables-legacy -A INPUT -s BLOCKED6 -j DROP",
		unblock: "iptables-legacy -F INPUT; ip6tables-legacy -F INPUT"},
}

// TestFirewall: what the kernel's filters drop of players that play is not relayed, with and without
// the fast path, and nothing of other players is lost.
func TestFirewall(t *testing.T) {
	for _, c := range []struct {
		fastCase
		rows string // empty: all
	}{
		{fastCase{mode: "off"}, "nft rule, tc"},
		{fastCase{mode: "auto"}, ""},
		{fastCase{mode: "auto", v6: true}, "nft rule, nft element, tc"},
		{fastCase{mode: "tc", wildcard: true}, "nft tables of one family, iptables-legacy"},
		{fastCase{mode: "native", wildcard: true}, "nft element, tc, ipset"},
	} {
		t.Run(c.String(), func(t *testing.T) {
			l := newFastLab(t, c.fastCase, withFlags("--idle-timeout", "60s", "--host-alone-timeout", "60s"))
			others, _ := l.fleet(l.fastPlayers(5, c.fastCase))
			cfg := l.fastPlayers(5, c.fastCase)
			for range 64 {
				cfg.Hosts.First, cfg.Joiners.First = cfg.Hosts.First.Next(), cfg.Joiners.First.Next()
			}
			f, _ := l.fleet(cfg)
			for _, w := range firewalls {
				if *long || c.rows == "" || strings.Contains(c.rows, w.name) {
					l.passFirewall(w, c.mode, f, others)
				}
			}
		})
	}
}

func (l *lab) passFirewall(w firewall, mode string, f, others *Fleet) {
	l.Helper()
	for program := range strings.FieldsSeq(w.programs) {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" {
				l.Fatalf("%s: CI installs %s", w.name, program)
			}
			l.Logf("%s: skipped without %s", w.name, program)
			return
		}
	}
	l.inRelay(w.before)
	if mode == "off" {
		l.requireTraffic(f, 20*time.Second)
	} else {
		l.requireFast(f, "before "+w.name)
	}
	before := others.Settle()
	block := func() error { l.inRelay(w.block); return nil }
	if w.block == "" {
		block = func() error { return l.net.Relay.Do(dropByTC) }
	}
	if err := block(); err != nil {
		l.Fatal(err)
	}
	began, received := time.Now(), f.Counts().Received
	last := began // when one came
	for now := began; now.Sub(last) < time.Second && now.Sub(began) < 2*soon; now = time.Now() {
		if n := f.Counts().Received; n != received {
			received, last = n, now
		}
		time.Sleep(10 * time.Millisecond)
	}
	took := last.Sub(began).Round(time.Millisecond)
	l.Logf("%s: stopped within %v", w.name, took)
	if took > w.within {
		l.Errorf("%s: players that are blocked go on for %v", w.name, took)
	}
	if c := others.SettleTo(before.Lost()).Since(before); c.Lost() > 0 || c.Sent == 0 {
		l.Errorf("%s: other players: %v", w.name, c)
	}
	l.inRelay(w.unblock)
	l.requireTraffic(f, 20*time.Second)
	l.requireNoFailures(others.Counts())
}

func (l *lab) inRelay(script string) {
	l.Helper()
	script = strings.NewReplacer("BLOCKED4", blocked4, "BLOCKED6", blocked6).Replace(script)
	if out, err := exec.Command("ip", "netns", "exec", l.net.Relay.Name, "sh", "-ec", script).CombinedOutput(); err != nil {
		l.Fatalf("%s: %v: %s", script, err, out)
	}
}

// dropByTC attaches a filter to both links of the relay that drops what comes from blocked4 and
// blocked6: a program, since not every kernel has the other kinds of filters and actions.
func dropByTC() error {
	const drop, pass = 2, -1 // TC_ACT_SHOT and TC_ACT_UNSPEC
	mask := netip.MustParseAddr("255.254.255.192").As4()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(12, asm.Half),
		asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "IPv6"),
		asm.LoadAbs(14+12, asm.Word),
		asm.And.Imm(asm.R0, int32(uint32(mask[0])<<24|uint32(mask[1])<<16|uint32(mask[2])<<8|uint32(mask[3]))),
		asm.LSh.Imm(asm.R0, 32), asm.RSh.Imm(asm.R0, 32),
		asm.LoadImm(asm.R1, 198<<24|18<<16|64, asm.DWord),
		asm.JEq.Reg(asm.R0, asm.R1, "drop"),
		asm.Mov.Imm(asm.R0, pass), asm.Return(),
		asm.LoadAbs(12, asm.Half).WithSymbol("IPv6"),
		asm.JNE.Imm(asm.R0, unix.ETH_P_IPV6, "pass"),
		asm.LoadAbs(14+8+12, asm.Word), // The last word tells them from others.
		asm.RSh.Imm(asm.R0, 6),
		asm.JEq.Imm(asm.R0, 1, "drop"),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"), asm.Return(),
		asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"), asm.Return(),
	}})
	if err != nil {
		return err
	}
	defer program.Close()
	for _, name := range []string{LinkClients, LinkPeers} {
		link, e := netlink.LinkByName(name)
		if e != nil {
			return e
		}
		err = errors.Join(err, netlink.FilterAdd(&netlink.BpfFilter{Fd: program.FD(), Name: "drop", DirectAction: true,
			FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1,
				Protocol: unix.ETH_P_ALL, Priority: 1}}))
	}
	return err
}
