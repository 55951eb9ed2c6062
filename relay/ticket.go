package relay

import (
	"fmt"
	"net/netip"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client"
)

// TicketOf returns the ticket of a client in the same program, such as a bot or the host of a
// dedicated server, from a reservation of [alloc.Service] or [alloc.Relay]. Error: there is no
// udp endpoint with an IP address.
func TicketOf(r alloc.Reservation) (client.Ticket, error) {
	t := client.Ticket{ID: r.ID, Key: r.Key, ConnectionData: r.ConnectionData[:]}
	if r.HostConnectionData != r.ConnectionData { // A host has its own.
		t.HostConnectionData = r.HostConnectionData[:]
	}
	for _, e := range r.Endpoints {
		ip, err := netip.ParseAddr(e.Host)
		switch {
		case e.ConnectionType != "udp" || err != nil:
		case !t.Server.IsValid():
			t.Server = netip.AddrPortFrom(ip.Unmap(), e.Port)
		default:
			t.Alternatives = append(t.Alternatives, netip.AddrPortFrom(ip.Unmap(), e.Port))
		}
	}
	if !t.Server.IsValid() {
		return client.Ticket{}, fmt.Errorf("relay: a reservation without a udp endpoint has no ticket")
	}
	return t, nil
}
