//go:build linux && amd64 && !sockportable

package fastpath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/safchain/ethtool"

	"github.com/ferryrelay/ferry/engine/internal/nexthop"
	"github.com/ferryrelay/ferry/engine/internal/program"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

func (p *path) Check(listen []netip.AddrPort) []privateapi.Finding {
	const subject = "fast path"
	resolver, err := nexthop.New()
	if err != nil {
		return []privateapi.Finding{finding(subject, err.Error(), "give the process access to netlink",
			"the program sends by the routes and neighbours that netlink reports")}
	}
	defer resolver.Close()
	cfg := &p.cfg
	p.listen, p.resolver = listen, resolver
	found := []privateapi.Finding{kernelFinding(cfg.Native)}
	if _, err := resolver.Route(netip.IPv4Unspecified()); errors.Is(err, nexthop.ErrPolicy) {
		found = append(found, finding(subject, "off for all interfaces",
			"remove routing rules (ip rule) and IPsec policies (ip xfrm policy), or leave xdp off", err.Error()))
	}
	wanted := p.wantedInterfaces()
	if len(wanted) == 0 {
		found = append(found, finding(subject, "no Ethernet interface that is up has a listen address", "set udp or xdp_interfaces",
			"the program serves interfaces"))
	}
	for _, index := range slices.Sorted(maps.Keys(wanted)) {
		i, _ := resolver.Interface(index)
		found = append(found, interfaceFinding(i, cfg))
	}
	f, _ := nexthop.Filters(wanted)
	for _, filters := range []struct {
		what, because string
		names         []string
	}{
		{"nftables has rules for what this machine sends: ", "the program passes by them", f.Sent},
		{"limits, quotas or queues for what this machine receives: ", "they see a small part of what the program relays", f.Counted},
	} {
		if len(filters.names) == 0 {
			continue
		}
		f := finding(subject, filters.what+strings.Join(filters.names, ", "), "make sure that they do not concern the relay", filters.because)
		if cfg.Auto {
			f.Change, f.Because = "set xdp: tc if they do not concern the relay", "with xdp: auto the program is off, since "+filters.because
		}
		found = append(found, f)
	}
	if len(wanted) > 0 {
		bypassed := "passes no conntrack, and no nftables of the IP layer, but for one datagram of each player in 5 s"
		if cfg.Native {
			bypassed += "; no queueing discipline, and is not seen by tcpdump"
		}
		found = append(found, finding(subject, "what the program relays "+bypassed, "",
			"it is received and sent below them; a block of a player works at once by nftables and tc, and within 5 s by iptables-legacy, ipset and BPF"))
	}
	return found
}

func kernelFinding(native bool) privateapi.Finding {
	f := finding("fast path", "the kernel takes the program", "", "it was loaded for this check, and not attached")
	err := sock.SynchronizeKernel()
	if err == nil {
		var loaded *program.Program
		if loaded, err = program.Load(program.Parameters{Allocations: 1, Listeners: 1, Native: native}); err == nil {
			loaded.Close()
			return f
		}
	}
	f.Finding, f.Because = "off for all interfaces", err.Error()
	f.Change = "run the relay with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON on Linux 6.6 or later, or leave xdp off"
	return f
}

func interfaceFinding(i nexthop.Interface, cfg *Config) privateapi.Finding {
	driver := "no driver of its own"
	if target, err := os.Readlink(filepath.Join("/sys/class/net", i.Name, "device/driver")); err == nil {
		driver = "driver " + filepath.Base(target)
	}
	f := privateapi.Finding{
		Subject: i.Name, Finding: fmt.Sprintf("fast path at %s, %s, %s, MTU %d", cfg.mode(), i.Kind, driver, i.MTU),
		Because: "tc works with any driver, and with VLANs, bonds and bridges",
	}
	if cfg.Native {
		f.Because = "only an attempt shows whether the driver has native XDP with its present queues, MTU and offloads"
		if i.Kind == "veth" || strings.HasPrefix(driver, "no ") {
			f.Change, f.Because = "use xdp: tc", "native XDP is for drivers of network cards; on a veth it breaks the checksums of local senders"
		} else if err := checkVLAN(&i); err != nil {
			f.Change, f.Because = "ethtool -K "+i.Name+" rxvlan off, or use xdp: tc", err.Error()
		}
	}
	return f
}

// checkVLAN returns an error for an interface whose card takes the tags of VLANs off: a program of
// XDP does not see them, and would relay what the kernel keeps apart.
func checkVLAN(i *nexthop.Interface) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil // and no tags are taken off
	}
	defer e.Close()
	features, _ := e.Features(i.Name)
	if i.Kind == "veth" || !takesTags(features) {
		return nil
	}
	return fmt.Errorf("its card takes the tags of VLANs off before the program sees them (ethtool -K %s rxvlan off); tc sees them", i.Name)
}

func takesTags(features map[string]bool) bool {
	return features["rx-vlan-hw-parse"] || features["rx-vlan-stag-hw-parse"]
}
