package httpapi

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

func checkFamily(family int) *api.Problem {
	if family != 0 && family != 4 && family != 6 {
		return invalidMember("family", "is neither 4 nor 6")
	}
	return nil
}

// overIPv6 reports whether a player called over IPv6. A link-local address says nothing about
// the way to a relay.
func (r request) overIPv6() bool {
	a := r.caller.Address
	return a.Is6() && !a.IsLinkLocalUnicast()
}

// typeOrder is the order of connection types; any other type comes last.
var typeOrder = []string{"udp", "dtls", "ws", "wss", "wt"}

// serverEndpoints returns endpoints in the order of an answer. Most clients take the first
// endpoint of their connection type, and a host of Unity binds the family of its address.
func serverEndpoints(endpoints []alloc.ServerEndpoint, ipv6First bool) []api.ServerEndpoint {
	all := make([]api.ServerEndpoint, len(endpoints))
	for i, e := range endpoints {
		all[i] = api.ServerEndpoint{
			ConnectionType: e.ConnectionType,
			Network:        e.Network,
			Reliable:       e.Reliable,
			Secure:         e.Secure,
			Host:           e.Host,
			Port:           int(e.Port),
		}
	}
	family := func(e api.ServerEndpoint) int {
		if strings.Contains(e.Host, ":") != ipv6First {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b api.ServerEndpoint) int {
		return cmp.Or(cmp.Compare(typeRank(a), typeRank(b)), cmp.Compare(family(a), family(b)))
	})
	return all
}

func typeRank(e api.ServerEndpoint) int {
	if i := slices.Index(typeOrder, e.ConnectionType); i >= 0 {
		return i
	}
	return len(typeOrder)
}
