// Package enginetest helps to test code that is built on a relay. [Start] runs a relay
// on loopback for the length of a test, and [UTP] is a model of a real game client
// for it, or for any other relay that speaks the protocol.
//
// The client model is written from the published text and from observed
// behaviour alone: it shares no code with the relay, so that one misreading
// cannot hide in both.
package enginetest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// Relay is a relay that runs for the length of a test, or until Stop.
type Relay struct {
	*engine.Server
	// Kept are the join codes from its state file.
	Kept []privateapi.KeptCode

	t      testing.TB
	cancel context.CancelFunc
	ended  chan struct{} // closed when Run has returned
	err    error         // of Run, from then on
}

// Tenant is the tenant of everything that [Relay.Host] and [Relay.Joiner]
// reserve.
var Tenant = alloc.Tenant{Project: "enginetest", Environment: "test"}

// Start runs a relay with a random identity and stops it when the test
// ends; the test fails if Run returns an error.
func Start(t testing.TB, cfg engine.Config) *Relay {
	t.Helper()
	return StartAs(t, cfg, NewIdentity(t))
}

// StartIdle is Start with an idle time-out, 0 for the default, and defaults for all else.
func StartIdle(t testing.TB, idle time.Duration) *Relay {
	t.Helper()
	return Start(t, engine.Config{Timeouts: engine.Timeouts{Idle: idle}})
}

// StartAs is Start with an identity, so that a test can restart the same relay.
func StartAs(t testing.TB, cfg engine.Config, id engine.Identity) *Relay {
	t.Helper()
	srv, err := engine.New(cfg, id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Relay{Server: srv, Kept: srv.Private().KeptCodes(), t: t, cancel: cancel, ended: make(chan struct{})}
	go func() {
		r.err = srv.Run(ctx)
		close(r.ended)
	}()
	t.Cleanup(r.Stop)
	r.awaitReady()
	return r
}

// awaitReady waits until the relay carries out calls, or has ended.
func (r *Relay) awaitReady() {
	select {
	case <-r.Ready():
	case <-r.ended:
	}
}

// Stop stops the relay and waits until Run has returned.
func (r *Relay) Stop() {
	r.t.Helper()
	r.cancel()
	<-r.ended
	if r.err != nil {
		r.t.Errorf("enginetest: relay ended with %v", r.err)
	}
}

// Ended reports whether the relay has ended, by itself or by Stop.
func (r *Relay) Ended() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// NewIdentity returns a random identity.
func NewIdentity(t testing.TB) engine.Identity {
	t.Helper()
	id, err := engine.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Host reserves an allocation for a host with up to max players.
func (r *Relay) Host(player string, max int) alloc.Reservation {
	r.t.Helper()
	res, err := r.ReserveHost(context.Background(), alloc.HostRequest{
		Caller: alloc.Caller{Tenant: Tenant}, PlayerHash: alloc.HashPlayer(Tenant, player), MaxConnections: max,
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
		Caller: alloc.Caller{Tenant: Tenant}, PlayerHash: alloc.HashPlayer(Tenant, player), Host: host,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// Credentials returns the credentials of a reservation for a client of this relay.
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
