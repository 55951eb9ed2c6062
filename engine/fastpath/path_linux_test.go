//go:build linux && amd64 && !sockportable

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/nexthop"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/safchain/ethtool"
)

func addLink(t *testing.T) {
	t.Helper()
	testkit.IP(t, "link add wan type veth peer name far")
	testkit.IP(t, "addr add 198.18.0.1/24 dev wan")
	testkit.IP(t, "link set far up")
	testkit.IP(t, "link set wan up")
	// The kernel changes the operational state some time after the command.
	testkit.Eventually(t, "the link is up", func() bool {
		resolver, err := nexthop.New()
		if err != nil {
			t.Fatal(err)
		}
		defer resolver.Close()
		return slices.ContainsFunc(resolver.Interfaces(), func(i nexthop.Interface) bool { return i.Name == "wan" && i.Usable })
	})
}

var relayAddr = netip.MustParseAddrPort("198.18.0.1:7777")

func peerAt(addr string) endpoint.Endpoint { return endpoint.UDP(netip.MustParseAddrPort(addr), 0, 0) }

// TestPath: next hops follow the kernel's routes and neighbours; the program is on when all are
// known, off by request, and attached again to an interface that comes back.
func TestPath(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	addLink(t)
	p := newPath(Config{})
	memory, err := p.Load(driver.FastPathSpec{Listen: []netip.AddrPort{relayAddr}, MaxAllocations: 5000, MaxMessage: 1438})
	if err != nil {
		t.Fatal(err)
	}
	if memory.Slab(4) == nil || len(memory.IDs) != 2048 {
		t.Errorf("memory for 5,000 allocations: %d lines", len(memory.IDs))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var changes atomic.Int64
	go func() { ended <- p.Run(ctx, func() { changes.Add(1) }) }()
	testkit.Eventually(t, "the first state of the network", func() bool { return changes.Load() > 0 })
	resume := func() {
		p.Resume(p.Generation())
		if c := p.Counts(); !c.On || strings.Join(c.Interfaces, " ") != "wan" {
			t.Errorf("after Resume: on %t, interfaces %v", c.On, c.Interfaces)
		}
	}
	p.Resume(p.Generation() - 1)
	if p.Counts().On {
		t.Error("on before all next hops of this state are known")
	}
	resume()

	near, behind := p.NextHop(peerAt("198.18.0.9:1"), relayAddr), p.NextHop(peerAt("8.8.8.8:1"), relayAddr)
	if near == 0 || behind != 0 || p.NextHop(peerAt("198.18.0.9:2"), relayAddr) != near {
		t.Errorf("next hops: %d on the link, %d without a route", near, behind)
	}
	if p.Counts().NoNextHop["no_route"] != 1 {
		t.Errorf("no next hop: %v", p.Counts().NoNextHop)
	}
	p.SetEnabled(false)
	if p.Counts().On {
		t.Error("on although it was turned off")
	}
	p.SetEnabled(true)

	before := p.Generation()
	testkit.IP(t, "route add default via 198.18.0.254")
	testkit.Eventually(t, "the route is seen", func() bool { return p.Generation() > before })
	testkit.Eventually(t, "control hears of the change", func() bool { return changes.Load() > 1 })
	if p.Counts().On {
		t.Error("on while next hops are asked for again")
	}
	resume()
	if gateway := p.NextHop(peerAt("8.8.8.8:1"), relayAddr); gateway == 0 || p.NextHop(peerAt("9.9.9.9:1"), relayAddr) != gateway {
		t.Errorf("by the default route: %d", gateway)
	}

	seen := changes.Load()
	testkit.IP(t, "link del wan")
	testkit.Eventually(t, "the interface is gone", func() bool { return changes.Load() > seen && len(p.Counts().Interfaces) == 0 })
	addLink(t)
	testkit.Eventually(t, "the program serves the new one", func() bool { return len(p.Counts().Interfaces) == 1 })
	p.fail(errors.New("a fault"))
	p.Resume(p.Generation())
	if p.Counts().On {
		t.Error("on after a fault")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAuto: with Auto the program waits for an interface with the relay's address, says so, and
// serves it then, also after its link was down.
func TestAuto(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	listen := netip.MustParseAddrPort("0.0.0.0:7777")
	p := newPath(Config{Auto: true})
	if _, err := p.Load(driver.FastPathSpec{Listen: []netip.AddrPort{listen}, MaxAllocations: 1, MaxMessage: 1438}); err != nil {
		t.Fatal(err)
	}
	end := runPath(t, p)
	on := func() bool { p.Resume(p.Generation()); c := p.Counts(); return c.On && len(c.Interfaces) == 1 }
	waits := func() bool {
		return !on() && strings.Contains(p.Counts().OffBecause, "no Ethernet interface that is up has a listen address")
	}
	if !waits() {
		t.Errorf("before there is an interface: %+v", p.Counts())
	}
	addLink(t)
	testkit.Eventually(t, "it serves the interface that came later", on)
	testkit.IP(t, "link set wan down")
	testkit.Eventually(t, "it is off", waits) // and not only since next hops are looked up
	testkit.IP(t, "link set wan up")
	testkit.Eventually(t, "it is on again", on)
	end()
	if p.detached != "" {
		t.Errorf("it is attached, and says %q", p.detached)
	}
}

func runPath(t *testing.T, p *path) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var began atomic.Bool
	go func() { ended <- p.Run(ctx, func() { began.Store(true) }) }()
	testkit.Eventually(t, "the first state of the network", began.Load)
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestReplace: the program of another process at a driver is replaced when that has ended, with
// its attachment, or, if that is of an older version, without it.
func TestReplace(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	addLink(t)
	spec := driver.FastPathSpec{Listen: []netip.AddrPort{relayAddr}, MaxAllocations: 1, MaxMessage: 1438}
	cfg := Config{Native: true, Interfaces: []string{"wan"}}
	load := func() *path {
		p := newPath(cfg)
		if _, err := p.Load(spec); err != nil {
			t.Fatal(err)
		}
		return p
	}
	attached := func() string {
		out, err := exec.Command("ip", "-o", "link", "show", "wan").CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		_, id, _ := strings.Cut(string(out), "prog/xdp id ")
		id, _, _ = strings.Cut(id, " ")
		return id
	}
	old := load()
	for _, form := range []string{"with its attachment", "without it"} {
		end, before := runPath(t, old), attached()
		links, err := old.Links()
		if err != nil || len(links) != 1 {
			t.Fatalf("links %v, %v", links, err)
		}
		if form == "without it" {
			for _, f := range links {
				f.Close()
			}
			links = nil
		}
		cfg.Link = func(ifindex int) *os.File { return links[ifindex] }
		p := load()
		if attached() != before {
			t.Errorf("%s: the program was replaced while the old process serves", form)
		}
		old.Resume(old.Generation())
		end()
		if handed := attached(); (form == "with its attachment") != (handed == before) || old.program.On() {
			t.Errorf("%s: program %q after the end of the old process, %q before; on: %t", form, handed, before, old.program.On())
		}
		end = runPath(t, p)
		p.Resume(p.Generation())
		if c := p.Counts(); attached() == before || attached() == "" || !c.On {
			t.Errorf("%s: program %q, %+v", form, attached(), c)
		}
		end()
		if attached() != "" {
			t.Errorf("%s: program %q is still attached", form, attached())
		}
		cfg.Link = nil
		old = load()
	}
	old.Close()
}

// TestNextHopMTU: over IPv6 the program sends what fits every path, and over IPv4, where routers
// fragment, what fits the interface.
func TestNextHopMTU(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	addLink(t)
	testkit.IP(t, "addr add 2001:db8::1/64 dev wan nodad")
	relay6 := netip.MustParseAddrPort("[2001:db8::1]:7777")
	p := newPath(Config{})
	if _, err := p.Load(driver.FastPathSpec{Listen: []netip.AddrPort{relayAddr, relay6}, MaxAllocations: 1, MaxMessage: 1438}); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for to, from := range map[string]netip.AddrPort{"198.18.0.9:1": relayAddr, "[2001:db8::9]:1": relay6} {
		nextHop := p.NextHop(peerAt(to), from)
		if nextHop == 0 {
			t.Fatalf("no next hop to %s", to)
		}
		want := 1500
		if from == relay6 {
			want = 1280
		}
		if got := p.hops[nextHop].MTU; got != want {
			t.Errorf("to %s: MTU %d, want %d", to, got, want)
		}
	}
}

// TestAvoidFilters: with Auto the program is off while nftables has a rule for what this
// machine sends, or a limit for what it receives. Without it Check names the chain.
func TestAvoidFilters(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	addLink(t)
	nft, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tab := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "host"})
	chain := func(name string, hook *nftables.ChainHook, rule ...expr.Any) {
		t.Helper()
		c := nft.AddChain(&nftables.Chain{Name: name, Table: tab, Type: nftables.ChainTypeFilter, Hooknum: hook,
			Priority: nftables.ChainPriorityFilter})
		if rule != nil {
			nft.AddRule(&nftables.Rule{Table: tab, Chain: c, Exprs: rule})
		}
		if err := nft.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	chain("received", nftables.ChainHookInput, &expr.Counter{})
	chain("empty", nftables.ChainHookOutput)
	p := newPath(Config{Auto: true})
	if _, err := p.Load(driver.FastPathSpec{Listen: []netip.AddrPort{relayAddr}, MaxAllocations: 1, MaxMessage: 1438}); err != nil {
		t.Fatal(err)
	}
	end := runPath(t, p)
	on := func() bool { p.Resume(p.Generation()); return p.Counts().On }
	testkit.Eventually(t, "it is on: no rule is for what is sent", on)

	for _, c := range []struct {
		name string
		hook *nftables.ChainHook
		rule expr.Any
	}{
		{"sent", nftables.ChainHookPostrouting, &expr.Counter{}},
		{"slow", nftables.ChainHookPrerouting, &expr.Limit{Type: expr.LimitTypePkts, Rate: 5, Unit: expr.LimitTimeSecond, Burst: 5}},
	} {
		chain(c.name, c.hook, c.rule)
		// A state of the network that is read late turns the program off as well, until Resume.
		testkit.Within(t, time.Minute, "the rule is found", func() bool {
			p.watchFilters() // The watch, whose turn comes each 5 s, finds the end of the rules.
			return !on() && strings.HasSuffix(p.Counts().OffBecause, ": inet host "+c.name)
		})
		found := false
		for _, f := range New(Config{}).Private().Check([]netip.AddrPort{relayAddr}) {
			found = found || strings.Contains(f.Finding, "inet host "+c.name)
		}
		if !found {
			t.Errorf("Check does not name the chain %s", c.name)
		}
	}
	nft.DelTable(tab)
	if err := nft.Flush(); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, time.Minute, "it is on again", on)
	end()
}

// TestFilterChanges: changes of nftables and of tc make the program wait for the sockets, once in
// 250 ms at most.
func TestFilterChanges(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	addLink(t)
	p := newPath(Config{})
	if _, err := p.Load(driver.FastPathSpec{Listen: []netip.AddrPort{relayAddr}, MaxAllocations: 1, MaxMessage: 1438}); err != nil {
		t.Fatal(err)
	}
	end := runPath(t, p)
	changes := func() uint64 { return p.Counts().FilterChanges }
	nft, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	before := changes() // The kernel may tell of the queues of the new link.
	tab := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv6, Name: "host"})
	set := &nftables.Set{Table: tab, Name: "banned", KeyType: nftables.TypeIP6Addr}
	if err := errors.Join(nft.AddSet(set, nil), nft.Flush()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a new set is a change", func() bool { return changes() > before })
	// The first of them may still belong to the call for the set.
	first, began, elements := changes(), time.Now(), 0
	testkit.Eventually(t, "new elements are changes", func() bool {
		for range 100 {
			elements++
			element := nftables.SetElement{Key: net.ParseIP(fmt.Sprintf("2001:db8::%x", elements))}
			if err := errors.Join(nft.SetAddElements(set, []nftables.SetElement{element}), nft.Flush()); err != nil {
				t.Fatal(err)
			}
		}
		return changes() > first
	})
	if n, most := changes()-first, 3+time.Since(began)/(250*time.Millisecond); n > uint64(most) {
		t.Errorf("%d times the program waited for the sockets, want at most %d", n, most)
	}
	if wait := p.expire(); wait <= 0 || wait > 250*time.Millisecond {
		t.Errorf("this is enough for changes within %v", wait)
	}
	end()
}

func TestDriverDrops(t *testing.T) {
	for counter, want := range map[string]bool{
		"rx_queue_0_xdp_tx_errors": true, "tx_queue_0_xdp_xmit_errors": true, "rx_xdp_tx_full": true, "rx0_xdp_tx_drops": true,
		"rx_xdp_redirect_errors": true,
		"rx_queue_0_xdp_tx":      false, "rx_xdp_drop": false, "tx_errors": false, "rx_queue_0_xdp_packets": false,
	} {
		if countsDrops(counter) != want {
			t.Errorf("%s counts drops: %t", counter, !want)
		}
	}
	for _, c := range []struct {
		drops, sent uint64
		want        bool
	}{{99, 100, false}, {100, 100, true}, {100, 200, false}, {5000, 10_000, false}, {5001, 10_000, true}, {0, 0, false}} {
		if dropping(c.drops, c.sent) != c.want {
			t.Errorf("%d of %d dropped: %t", c.drops, c.sent, !c.want)
		}
	}
}

// TestVLAN: native leaves alone a card that takes tags off.
func TestVLAN(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	addLink(t)
	card := nexthop.Interface{Name: "wan", Kind: "device"}
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, on := range []bool{true, false} { // A veth has the setting, without an effect.
		if err := e.Change("wan", map[string]bool{"rx-vlan-hw-parse": on, "rx-vlan-stag-hw-parse": on}); err != nil {
			t.Fatal(err)
		}
		if err := checkVLAN(&card); (err != nil) != on || on && !strings.Contains(err.Error(), "ethtool -K wan rxvlan off") {
			t.Errorf("tags are taken off: %t, %v", on, err)
		}
	}
}

// TestDriverWatch: a driver that drops is found at the next look, whenever it begins, also at an
// interface that came later; after that it begins anew.
func TestDriverWatch(t *testing.T) {
	var w driverWatch
	for i, step := range []struct {
		drops map[int]uint64
		sent  uint64
		begin bool
		want  int
	}{
		{drops: map[int]uint64{1: 500}, sent: 0},
		{drops: map[int]uint64{1: 800}, sent: 310, want: 1},
		{drops: map[int]uint64{1: 850}, sent: 360},
		{drops: map[int]uint64{1: 860}, sent: 5000, begin: true},
		{drops: map[int]uint64{1: 860, 2: 9000}, sent: 5500},
		{drops: map[int]uint64{1: 860, 2: 9600}, sent: 6000, want: 2},
		{drops: map[int]uint64{1: 3, 2: 9600}, sent: 6100}, // another card
		{drops: map[int]uint64{1: 200, 2: 9600}, sent: 6150, want: 1},
		{drops: nil, sent: 7000},
	} {
		if index, drops, sent := w.look(driverCounts{step.drops, step.sent}); index != step.want {
			t.Errorf("look %d: interface %d, %d of %d", i, index, drops, sent)
		}
		if step.begin {
			w.begin()
		}
	}
}

func TestLoadErrors(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	addLink(t)
	spec := driver.FastPathSpec{Listen: []netip.AddrPort{relayAddr}, MaxAllocations: 1, MaxMessage: 1438}
	for _, c := range []struct {
		cfg    Config
		listen string
		want   string
	}{
		{Config{Interfaces: []string{"eth7"}}, "198.18.0.1:7777", "there is no interface eth7"},
		{Config{}, "127.0.0.1:7777", "no Ethernet interface"},
		{Config{Auto: true}, "[::1]:7777", "no Ethernet interface"},
		{Config{Native: true}, "198.18.0.1:7777", "native XDP on a veth"},
		{Config{Native: true, Auto: true}, "198.18.0.1:7777", "native XDP on a veth"},
	} {
		spec.Listen = []netip.AddrPort{netip.MustParseAddrPort(c.listen)}
		p := newPath(c.cfg)
		_, err := p.Load(spec)
		if p.SetEnabled(true); p.Counts().On || !strings.Contains(p.Counts().OffBecause, c.want) {
			t.Errorf("%+v: %+v", c.cfg, p.Counts())
		}
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	spec.Listen = []netip.AddrPort{relayAddr}
	first, second := newPath(Config{Native: true, Interfaces: []string{"wan"}}), newPath(Config{Native: true, Interfaces: []string{"wan"}})
	if _, err := first.Load(spec); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Load(spec); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "interface wan: another program is attached to it") {
		t.Errorf("where another program is attached: %v", err)
	}
	first.Close()
	findings := New(Config{Native: true}).Private().Check([]netip.AddrPort{relayAddr})
	var text []string
	for _, f := range findings {
		text = append(text, f.Subject+" "+f.Finding+" "+f.Change)
	}
	if all := strings.Join(text, "\n"); !strings.Contains(all, "the kernel takes the program") ||
		!strings.Contains(all, "wan fast path at native, veth") || !strings.Contains(all, "use xdp: tc") {
		t.Errorf("findings:\n%s", all)
	}
	testkit.IP(t, "rule add to 203.0.113.0/24 table 7")
	if f := New(Config{}).Private().Check([]netip.AddrPort{relayAddr}); !strings.Contains(f[1].Change, "ip rule") {
		t.Errorf("with a routing rule: %+v", f)
	}
}
