package httpapi

import (
	"net/netip"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

// hostAllocation returns a reservation as allocate answers with it.
func hostAllocation(r alloc.Reservation) api.Allocation {
	endpoints := make([]api.ServerEndpoint, len(r.Endpoints))
	for i, e := range r.Endpoints {
		endpoints[i] = api.ServerEndpoint{
			ConnectionType: e.ConnectionType,
			Network:        e.Network,
			Reliable:       e.Reliable,
			Secure:         e.Secure,
			Host:           e.Host,
			Port:           int(e.Port),
		}
	}
	return api.Allocation{
		AllocationID:      r.ID.String(),
		AllocationIDBytes: r.ID[:],
		ConnectionData:    r.ConnectionData[:],
		Key:               r.Key[:],
		Region:            r.Region,
		RelayServer:       relayServer(r.Endpoints),
		ServerEndpoints:   endpoints,
	}
}

// joinerAllocation returns a reservation as join answers with it.
func joinerAllocation(r alloc.Reservation) api.Allocation {
	a := hostAllocation(r)
	a.HostConnectionData = r.HostConnectionData[:]
	return a
}

// relayServer fills the deprecated member: the first udp endpoint with an IPv4
// literal, else the first udp one, else the first one at all, because clients
// that demand the member do not demand that they can use it.
func relayServer(endpoints []alloc.ServerEndpoint) api.RelayServer {
	var best alloc.ServerEndpoint
	rank := 0
	for _, e := range endpoints {
		if r := relayServerRank(e); r > rank {
			best, rank = e, r
		}
	}
	return api.RelayServer{IPv4: best.Host, Port: int(best.Port)}
}

func relayServerRank(e alloc.ServerEndpoint) int {
	addr, err := netip.ParseAddr(e.Host)
	switch {
	case e.ConnectionType != "udp":
		return 1
	case err != nil || !addr.Is4():
		return 2
	}
	return 3
}
