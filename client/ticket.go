package client

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// Ticket holds the address, identity and credentials with which a Session uses its
// allocation. Treat it as a secret: Key authenticates the player (it prints as
// "[redacted]"), and ConnectionData admits joiners.
type Ticket struct {
	// Server is the relay's UDP endpoint. Datagrams from any other are ignored.
	Server netip.AddrPort
	// Alternatives are further UDP endpoints of the relay, such as of the other family.
	// While a BIND has no answer, the session tries all in turn.
	Alternatives []netip.AddrPort
	ID           proto.AllocationID
	// Key signs the BIND.
	Key proto.Key
	// ConnectionData is the player's own, 1 to 255 bytes.
	ConnectionData []byte
	// HostConnectionData is the ticket to the host, at most 255 bytes. Empty
	// makes the session a host, anything else a joiner.
	HostConnectionData []byte
}

// Reserve asks the API for a host's allocation; an empty region lets the server
// choose. The session must bind within 10 s. Its join code is c.JoinCode(ctx,
// ticket.ID.String()).
func Reserve(ctx context.Context, c *api.Client, maxConnections int, region string) (Ticket, error) {
	a, err := c.Allocate(ctx, api.AllocateRequest{MaxConnections: maxConnections, Region: region})
	if err != nil {
		return Ticket{}, err
	}
	return TicketFrom(a)
}

// Redeem asks the API for a joiner's allocation by join code, as a player types or pastes it.
// The session must bind within 10 s.
func Redeem(ctx context.Context, c *api.Client, joinCode string) (Ticket, error) {
	a, err := c.Join(ctx, joincode.Trim(joinCode))
	if err != nil {
		return Ticket{}, err
	}
	return TicketFrom(a)
}

// TicketFrom converts an allocation of the API, and checks its sizes and its
// "udp" endpoints. Errors wrap ErrConfig.
func TicketFrom(a api.Allocation) (Ticket, error) {
	if len(a.AllocationIDBytes) != len(proto.AllocationID{}) || len(a.Key) != len(proto.Key{}) {
		return Ticket{}, fmt.Errorf("%w: allocation id of %d bytes and key of %d bytes, need %d and %d",
			ErrConfig, len(a.AllocationIDBytes), len(a.Key), len(proto.AllocationID{}), len(proto.Key{}))
	}
	servers, err := udpServers(a)
	if err != nil {
		return Ticket{}, err
	}
	t := Ticket{
		Server:             servers[0],
		Alternatives:       servers[1:],
		ID:                 proto.AllocationID(a.AllocationIDBytes),
		Key:                proto.Key(a.Key),
		ConnectionData:     a.ConnectionData,
		HostConnectionData: a.HostConnectionData,
	}
	return t, t.check()
}

func udpServers(a api.Allocation) (all []netip.AddrPort, err error) {
	err = fmt.Errorf("%w: relay offers no udp endpoint", ErrConfig)
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType != "udp" {
			continue
		}
		addr, parseErr := netip.ParseAddr(e.Host)
		switch {
		case parseErr != nil:
			err = fmt.Errorf("%w: udp endpoint: %w", ErrConfig, parseErr)
		case e.Port < 1 || e.Port > 65535:
			err = fmt.Errorf("%w: udp endpoint has port %d", ErrConfig, e.Port)
		default:
			all = append(all, netip.AddrPortFrom(addr.Unmap(), uint16(e.Port)))
		}
	}
	if len(all) == 0 {
		return nil, err
	}
	return all, nil
}

func (t Ticket) servers() []netip.AddrPort {
	all := append([]netip.AddrPort{t.Server}, t.Alternatives...)
	for i, a := range all {
		all[i] = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return all
}

func (t Ticket) check() error {
	for _, a := range t.servers() {
		if !a.IsValid() || a.Port() == 0 || a.Addr().IsUnspecified() {
			return fmt.Errorf("%w: relay address %v", ErrConfig, a)
		}
	}
	switch {
	case t.ID.IsZero():
		return fmt.Errorf("%w: allocation id is zero", ErrConfig)
	case len(t.ConnectionData) == 0 || len(t.ConnectionData) > proto.MaxConnectionData:
		return fmt.Errorf("%w: connection data of %d bytes", ErrConfig, len(t.ConnectionData))
	case len(t.HostConnectionData) > proto.MaxConnectionData:
		return fmt.Errorf("%w: host connection data of %d bytes", ErrConfig, len(t.HostConnectionData))
	}
	return nil
}
