package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// ErrNoAddress is wrapped by the error about a node without an address of a wanted family.
var ErrNoAddress = errors.New("kube: the node has no such address")

// Family is an address family: "ip4" or "ip6", as package net names them.
type Family string

const (
	IPv4 Family = "ip4"
	IPv6 Family = "ip6"
)

func (f Family) has(ip netip.Addr) bool { return ip.Is4() == (f == IPv4) }

// NodeAddresses are the addresses of a node for players: one of each wanted family, in their
// order, and the DNS name that they come from, empty if they are not from a name.
type NodeAddresses struct {
	IPs  []netip.Addr
	Name string
}

// Lookup returns the addresses of a name, as net.Resolver.LookupNetIP with the network "ip".
type Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

type node struct {
	Metadata metadata `json:"metadata"`
	Status   struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

// NodeAddresses returns the addresses of a node for players. Source is a type of the node's status,
// such as InternalIP, ExternalIP and ExternalDNS, or the key of an annotation, which contains a
// slash. What is there are IP addresses or a DNS name, separated by commas in an annotation; a name
// is resolved with lookup, once. Errors wrap ErrNoAddress, or are those of the call or of lookup.
func (c *Client) NodeAddresses(ctx context.Context, name, source string, families []Family, lookup Lookup) (NodeAddresses, error) {
	var n node
	if err := c.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(name), "", nil, &n); err != nil {
		return NodeAddresses{}, err
	}
	var found NodeAddresses
	var all []netip.Addr
	for _, text := range n.values(source) {
		if ip, err := netip.ParseAddr(text); err == nil {
			all = append(all, ip.Unmap())
			continue
		}
		ips, err := lookup(ctx, "ip", text)
		if err != nil {
			return NodeAddresses{}, fmt.Errorf("kube: %s of node %s: %w", source, name, err)
		}
		for _, ip := range ips {
			all = append(all, ip.Unmap())
		}
		if found.Name == "" {
			found.Name = text
		}
	}
	for _, f := range families {
		i := slices.IndexFunc(all, f.has)
		if i < 0 {
			return NodeAddresses{}, fmt.Errorf("%w: %s of node %s has none of %s, only %v", ErrNoAddress, source, name, f, all)
		}
		found.IPs = append(found.IPs, all[i])
	}
	return found, nil
}

func (n *node) values(source string) (all []string) {
	if strings.Contains(source, "/") {
		for text := range strings.SplitSeq(n.Metadata.Annotations[source], ",") {
			if text = strings.TrimSpace(text); text != "" {
				all = append(all, text)
			}
		}
		return all
	}
	for _, a := range n.Status.Addresses {
		if a.Type == source {
			all = append(all, a.Address)
		}
	}
	return all
}
