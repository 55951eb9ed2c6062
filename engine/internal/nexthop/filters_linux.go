package nexthop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// legacyTables are the tables of iptables that are not in nftables.
var legacyTables = []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"}

// FilterSet names filters of the kernel that a program has to heed which sends and receives without
// the kernel's IP layer.
type FilterSet struct {
	// Sent are the chains of nftables with rules, or with a policy of dropping, for what this
	// machine sends, and the tables of iptables' older form, whose rules are not known.
	Sent []string
	// Counted are the chains of nftables for what it receives whose verdict on a datagram depends on
	// those before it, by a limit, a quota or a queue, and such filters of tc.
	Counted []string
}

// Filters returns the filters of this network namespace, and those of tc at these interfaces.
func Filters(interfaces map[int]string) (f FilterSet, err error) {
	conn, err := nftables.New()
	if err != nil {
		return f, fmt.Errorf("nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return f, fmt.Errorf("nftables: %w", err)
	}
	receiving := make(map[nftables.Table]bool)
	for _, c := range chains {
		if receives(c) {
			receiving[tableOf(c)] = true
		}
	}
	for _, c := range chains {
		// Any other chain of the table may be jumped to.
		sent, received := sends(c), receives(c) || c.Hooknum == nil && receiving[tableOf(c)]
		if !sent && !received {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return f, fmt.Errorf("nftables: chain %s: %w", c.Name, err)
		}
		name := fmt.Sprintf("%s %s %s", families[c.Table.Family], c.Table.Name, c.Name)
		if sent && (len(rules) > 0 || c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop) {
			f.Sent = append(f.Sent, name)
		}
		if received && slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return counts(r.Exprs) && mayBeUDP(r.Exprs) }) {
			f.Counted = append(f.Counted, name)
		}
	}
	for _, file := range legacyTables {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // No module of it is loaded.
		}
		for _, name := range strings.Fields(string(text)) {
			f.Sent = append(f.Sent, "iptables "+name)
		}
	}
	for index, name := range interfaces {
		filters, err := netlink.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, netlink.HANDLE_MIN_INGRESS)
		if err == nil && slices.ContainsFunc(filters, polices) { // or it has no filters
			f.Counted = append(f.Counted, "tc police at "+name)
		}
	}
	return f, nil
}

func tableOf(c *nftables.Chain) nftables.Table {
	return nftables.Table{Name: c.Table.Name, Family: c.Table.Family}
}

var families = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyNetdev: "netdev",
}

// hookInetIngress is NF_INET_INGRESS of linux/netfilter.h.
const hookInetIngress = 5

// sends reports whether a chain handles datagrams that this machine sends. Those of the ARP
// and bridge families do not.
func sends(c *nftables.Chain) bool {
	if c.Table.Family == nftables.TableFamilyNetdev {
		return isAt(c, *nftables.ChainHookEgress)
	}
	return isAt(c, *nftables.ChainHookOutput, *nftables.ChainHookPostrouting)
}

// receives is sends for what this machine receives.
func receives(c *nftables.Chain) bool {
	if c.Table.Family == nftables.TableFamilyNetdev {
		return isAt(c, *nftables.ChainHookIngress)
	}
	return isAt(c, *nftables.ChainHookPrerouting, *nftables.ChainHookInput, hookInetIngress)
}

func isAt(c *nftables.Chain, hooks ...nftables.ChainHook) bool {
	return c.Hooknum != nil && families[c.Table.Family] != "" && slices.Contains(hooks, *c.Hooknum)
}

// countingMatches are matches of iptables, in nftables, that count; NFQUEUE is the target.
var countingMatches = []string{"connbytes", "connlimit", "hashlimit", "limit", "quota", "rateest", "recent", "statistic"}

// Types of objects of linux/netfilter/nf_tables.h.
const (
	objectQuota     = 2
	objectLimit     = 4
	objectConnlimit = 5
)

func counts(rule []expr.Any) bool {
	return slices.ContainsFunc(rule, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Limit, *expr.Quota, *expr.Queue, *expr.Connlimit, *expr.Numgen:
			return true
		case *expr.Objref:
			return e.Type == objectQuota || e.Type == objectLimit || e.Type == objectConnlimit
		case *expr.Dynset:
			return counts(e.Exprs)
		case *expr.Match:
			return slices.Contains(countingMatches, e.Name)
		case *expr.Target:
			return e.Name == "NFQUEUE"
		}
		return false
	})
}

// mayBeUDP reports false for a rule for another protocol, such as a limit of ICMP.
func mayBeUDP(rule []expr.Any) bool {
	for i := range len(rule) - 1 {
		meta, isMeta := rule[i].(*expr.Meta)
		cmp, isCmp := rule[i+1].(*expr.Cmp)
		if isMeta && isCmp && meta.Key == expr.MetaKeyL4PROTO && cmp.Op == expr.CmpOpEq && !bytes.Equal(cmp.Data, []byte{syscall.IPPROTO_UDP}) {
			return false
		}
	}
	return true
}

func polices(f netlink.Filter) bool {
	var actions []netlink.Action
	switch f := f.(type) {
	case *netlink.U32:
		if actions = f.Actions; f.Police != nil {
			return true
		}
	case *netlink.FwFilter:
		return f.Police != nil
	case *netlink.Flower:
		actions = f.Actions
	case *netlink.MatchAll:
		actions = f.Actions
	}
	return slices.ContainsFunc(actions, func(a netlink.Action) bool { return a.Type() == "police" })
}

// FilterEvents says when filters change: rules, sets and their elements of nftables, and filters of
// tc. The kernel does not say it of iptables' older form, of ipset, and of programs of BPF.
type FilterEvents struct{ sockets []*os.File }

// SubscribeFilters starts no goroutine: Run reports what changes from now on. The error is that
// of netlink(7).
func SubscribeFilters() (*FilterEvents, error) {
	f := new(FilterEvents)
	for _, s := range []struct {
		protocol, group int
	}{{syscall.NETLINK_ROUTE, groupTC}, {syscall.NETLINK_NETFILTER, groupNFTables}} {
		socket, err := sock.SubscribeNetlink(s.protocol, s.group)
		if errors.Is(err, syscall.EPROTONOSUPPORT) {
			continue // a kernel without nftables
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("subscribe to changes of filters: %w", err)
		}
		f.sockets = append(f.sockets, socket)
	}
	return f, nil
}

// Groups of rtnetlink(7) and of linux/netfilter/nfnetlink.h.
const (
	groupTC       = 4
	groupNFTables = 7
)

// Close ends the subscription, and a Run.
func (f *FilterEvents) Close() {
	for _, s := range f.sockets {
		_ = s.Close()
	}
}

// Run calls changed after a change, until parent ends. Changes while a call takes its time are left
// to that call. The error is that of netlink(7); changes are missed then.
func (f *FilterEvents) Run(parent context.Context, changed func()) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer context.AfterFunc(ctx, f.Close)()
	events := make(chan struct{}, 1)
	var receiving sync.WaitGroup
	defer receiving.Wait()
	for _, s := range f.sockets {
		receiving.Go(func() {
			for {
				// Messages were lost if there is no room for them.
				if _, err := s.Read(make([]byte, 1)); err != nil && !errors.Is(err, syscall.ENOBUFS) {
					cancel(fmt.Errorf("changes of filters: %w", err))
					return
				}
				select {
				case events <- struct{}{}:
				default:
				}
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			if parent.Err() != nil {
				return nil
			}
			return context.Cause(ctx)
		case <-events:
			changed()
			select {
			case <-events:
			default:
			}
		}
	}
}
