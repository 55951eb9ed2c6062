package enginetest

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
)

// Relay is a relay that runs for the length of a test.
type Relay struct {
	*engine.Server
	t testing.TB
}

// Tenant is the tenant of everything that [Relay.Host] and [Relay.Joiner]
// reserve.
var Tenant = alloc.Tenant{Project: "enginetest", Environment: "test"}

// Start makes a relay of a random identity, runs it, and stops it when the test
// ends; the test fails if it does not stop cleanly.
func Start(t testing.TB, cfg engine.Config) *Relay {
	t.Helper()
	srv, err := engine.New(cfg, Sealer(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("enginetest: relay ended with %v", err)
		}
	})
	return &Relay{srv, t}
}

// Sealer returns a sealer with a random master key and relay id.
func Sealer(t testing.TB) *alloc.Sealer {
	t.Helper()
	master, err := alloc.NewMasterKey(rand.Reader)
	var id alloc.RelayID
	rand.Read(id[:])
	sealer, err2 := alloc.NewSealer(alloc.SealerConfig{Master: master, Relay: id})
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return sealer
}

// Host reserves an allocation for a host with up to max players.
func (r *Relay) Host(player string, max int) alloc.Reservation {
	r.t.Helper()
	res, err := r.ReserveHost(context.Background(), alloc.HostRequest{
		Tenant: Tenant, Player: alloc.HashPlayer(Tenant, player), MaxConnections: max,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// Joiner reserves an allocation for a joiner of host.
func (r *Relay) Joiner(player string, host proto.AllocationID) alloc.Reservation {
	r.t.Helper()
	res, err := r.ReserveJoiner(context.Background(), alloc.JoinerRequest{
		Tenant: Tenant, Player: alloc.HashPlayer(Tenant, player), Host: host,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// Credentials are what a client needs to know of a reservation on this relay.
func (r *Relay) Credentials(res alloc.Reservation) Credentials {
	return Credentials{
		Relay: loopback(r.Addr()), ID: [16]byte(res.ID), Key: res.Key[:],
		ConnectionData: res.ConnectionData[:], HostConnectionData: res.HostConnectionData[:],
	}
}

func loopback(addr netip.AddrPort) netip.AddrPort {
	if !addr.Addr().IsUnspecified() {
		return addr
	}
	if addr.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), addr.Port())
}
