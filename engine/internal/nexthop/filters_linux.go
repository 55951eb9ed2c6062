package nexthop

import (
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
)

// legacyTables are the tables of iptables that are not in nftables.
var legacyTables = []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"}

// Filters returns the chains with rules, or with a policy of dropping, through which nftables
// sends what this machine sends, and the tables of iptables' older form, whose rules it does
// not know. What leaves without the kernel's IP layer passes none of them.
func Filters() (list []string, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	for _, c := range chains {
		if !sends(c) {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("nftables: chain %s: %w", c.Name, err)
		}
		if len(rules) > 0 || c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			list = append(list, fmt.Sprintf("%s %s %s", families[c.Table.Family], c.Table.Name, c.Name))
		}
	}
	for _, file := range legacyTables {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // No module of it is loaded.
		}
		for _, name := range strings.Fields(string(text)) {
			list = append(list, "iptables "+name)
		}
	}
	return list, nil
}

var families = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyNetdev: "netdev",
}

// sends reports whether a chain handles datagrams that this machine sends. Those of the ARP
// and bridge families do not.
func sends(c *nftables.Chain) bool {
	if c.Hooknum == nil || families[c.Table.Family] == "" {
		return false
	}
	if c.Table.Family == nftables.TableFamilyNetdev {
		return *c.Hooknum == *nftables.ChainHookEgress
	}
	return *c.Hooknum == *nftables.ChainHookOutput || *c.Hooknum == *nftables.ChainHookPostrouting
}
