package nexthop

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func nft(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command(testkit.Program(t, "nft", "nftables"), script).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v: %s", script, err, out)
	}
}

// TestFilters: of each family, chains with rules for what is sent are named, and of those for what
// is received the ones whose verdict depends on earlier datagrams.
func TestFilters(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	testkit.IP(t, "link set lo up")
	const input = "type filter hook input priority 0;"
	for _, c := range []struct{ rules, sent, counted string }{
		{"table inet f { chain c { " + input + " counter; udp dport 1 drop; }; }", "", ""},
		{"table inet f { chain c { type filter hook output priority 0; }; }", "", ""},
		{"table inet f { chain c { type filter hook output priority 0; policy drop; }; }", "inet f c", ""},
		{"table ip6 f { chain c { type filter hook postrouting priority 0; counter; }; }", "ip6 f c", ""},
		{"table inet f { chain c { " + input + " limit rate over 1/second drop; }; }", "", "inet f c"},
		{"table ip f { chain c { type filter hook prerouting priority 0; udp dport 1 quota over 1 mbytes drop; }; }", "", "ip f c"},
		{"table ip6 f { chain c { " + input + " numgen random mod 2 0 drop; }; }", "", "ip6 f c"},
		{"table inet f { chain c { " + input + " ct count over 9 drop; }; }", "", "inet f c"},
		{"table inet f { quota q { over 1 mbytes }; chain c { " + input + " quota name q drop; }; }", "", "inet f c"},
		{"table inet f { limit l { rate 1/second }; chain c { " + input + " limit name l accept; }; }", "", "inet f c"},
		{"table inet f { set s { type ipv4_addr; flags dynamic; }; chain c { " + input +
			" add @s { ip saddr limit rate over 1/second } drop; }; }", "", "inet f c"},
		{"table inet f { set s { type ipv4_addr; flags dynamic,timeout; }; chain c { " + input + " add @s { ip saddr timeout 1m }; }; }", "", ""},
		{"table inet f { chain slow { limit rate 1/second accept; drop; }; chain c { " + input + " udp dport vmap { 1 : jump slow }; }; }",
			"", "inet f slow"},
		{"table inet f { chain c { type filter hook forward priority 0; limit rate 1/second accept; }; }", "", ""},
		{"table netdev f { chain c { type filter hook ingress device lo priority 0; limit rate 1/second accept; }; }", "", "netdev f c"},
		{"table inet f { chain c { type filter hook ingress device lo priority 0; limit rate 1/second accept; }; }", "", "inet f c"},
		{"table netdev f { chain c { type filter hook egress device lo priority 0; counter; }; }", "netdev f c", ""},
		{"table bridge f { chain c { type filter hook input priority 0; limit rate 1/second accept; }; }", "", ""},
		{"table inet f { chain c { " + input + " icmp type echo-request limit rate 1/second accept; tcp dport 22 limit rate 1/second accept; }; }",
			"", ""},
		{"table inet f { chain c { " + input + " meta l4proto { tcp, udp } limit rate 1/second accept; }; }", "", "inet f c"},
	} {
		nft(t, "flush ruleset; "+c.rules)
		f, err := Filters(map[int]string{1: "lo"})
		if sent, counted := strings.Join(f.Sent, ", "), strings.Join(f.Counted, ", "); err != nil || sent != c.sent || counted != c.counted {
			t.Errorf("%s: sent %q, counted %q, %v; want %q, %q", c.rules, sent, counted, err, c.sent, c.counted)
		}
	}
	nft(t, "flush ruleset")
	iptables, err := exec.LookPath("iptables-nft")
	if err != nil {
		return
	}
	for rule, counted := range map[string]bool{
		"-s 192.0.2.1 -j DROP": false, "-p tcp -m limit --limit 5/s -j ACCEPT": false,
		"-p udp -m limit --limit 5/s -j ACCEPT": true, "-p udp -m hashlimit --hashlimit-name n --hashlimit-above 5/s -j DROP": true,
		"-m recent --name r --update --seconds 9 --hitcount 5 -j DROP": true, "-p udp -j NFQUEUE": true,
		"-m statistic --mode random --probability 0.5 -j DROP": true,
	} {
		for _, args := range []string{"-F INPUT", "-A INPUT " + rule} {
			if out, err := exec.Command(iptables, strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Fatalf("iptables %s: %v: %s", args, err, out)
			}
		}
		if f, err := Filters(nil); err != nil || len(f.Sent) > 0 || slices.Contains(f.Counted, "ip filter INPUT") != counted {
			t.Errorf("iptables %s: %+v, %v", rule, f, err)
		}
	}
}

// TestCounting has what the kernel of a test may lack.
func TestCounting(t *testing.T) {
	t.Parallel()
	if !counts([]expr.Any{&expr.Counter{}, &expr.Queue{}}) || counts([]expr.Any{&expr.Counter{}, &expr.Objref{Type: 1}}) {
		t.Error("a queue does not count, or a counter does")
	}
	police := []netlink.Action{&netlink.GenericAction{}, netlink.NewPoliceAction()}
	for i, c := range []struct {
		filter netlink.Filter
		want   bool
	}{
		{&netlink.U32{Police: netlink.NewPoliceAction()}, true}, {&netlink.FwFilter{Police: netlink.NewPoliceAction()}, true},
		{&netlink.U32{Actions: police}, true}, {&netlink.Flower{Actions: police}, true}, {&netlink.MatchAll{Actions: police}, true},
		{&netlink.Flower{Actions: police[:1]}, false}, {&netlink.FwFilter{}, false}, {&netlink.BpfFilter{}, false},
	} {
		if polices(c.filter) != c.want {
			t.Errorf("row %d: polices: %t", i, !c.want)
		}
	}
}

// TestFilterEvents: changes of rules, of elements and of tc are reported, also those before Run.
func TestFilterEvents(t *testing.T) {
	if !testkit.InNamespace(t) {
		return
	}
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	clsact := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: 1, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	for _, change := range []func(){
		func() { nft(t, "table inet f { set s { type ipv4_addr; }; }") },
		func() { nft(t, "add element inet f s { 192.0.2.1 }") },
		func() { nft(t, "delete element inet f s { 192.0.2.1 }") },
		func() { nft(t, "table ip6 f { chain c { type filter hook input priority 0; drop; }; }") },
		func() {
			if err := netlink.QdiscAdd(clsact); err != nil {
				t.Fatal(err)
			}
		},
		func() { // more than there is room for
			for range 3000 {
				if err := netlink.QdiscReplace(clsact); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		events, err := SubscribeFilters()
		if err != nil {
			t.Fatal(err)
		}
		change()
		reported, ended := make(chan struct{}), make(chan error, 1)
		var once sync.Once
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- events.Run(ctx, func() { once.Do(func() { close(reported) }) }) }()
		select {
		case <-reported:
			cancel()
			err = <-ended
		case err = <-ended:
			cancel()
		}
		if err != nil {
			t.Error(err)
		}
	}
	events, err := SubscribeFilters()
	if err != nil {
		t.Fatal(err)
	}
	events.Close()
	if err := events.Run(t.Context(), func() {}); err == nil {
		t.Error("no error when the subscription ends")
	}
}
