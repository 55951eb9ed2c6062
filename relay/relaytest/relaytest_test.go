package relaytest_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
	"github.com/ferryrelay/ferry/relay"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMemoryStore: the store in memory passes the tests for stores.
func TestMemoryStore(t *testing.T) {
	relaytest.TestStore(t, func(*testing.T) alloc.Store { return alloc.NewMemoryStore() })
}

// TestNetwork: a host and a player, both of this program, exchange datagrams over a network that
// loses some.
func TestNetwork(t *testing.T) {
	network := &relaytest.Network{Delay: time.Millisecond, Loss: 0.1}
	r := relaytest.Start(t, relay.Config{Engine: engine.Config{Transports: []engine.Transport{network.Transport()}}})
	host, code := r.Host("", 1, network.Client)
	_, toHost := r.Join("", code, network.Client)
	if where := host.LocalAddr().Addr(); where != netip.MustParseAddr("198.18.0.1") {
		t.Errorf("the host is at %v, not in the network", where)
	}
	var peer *client.Peer
	var err error
	testkit.Eventually(t, "the host hears the player", func() bool {
		if _, err := toHost.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		peer, err = host.TryAccept()
		return peer != nil || err != nil
	})
	if err != nil || peer.RemoteAddr() != toHost.LocalAddr() {
		t.Errorf("peer %v, %v", peer, err)
	}
}

// TestTicketOf: a reservation without a usable endpoint is an error.
func TestTicketOf(t *testing.T) {
	if _, err := relay.TicketOf(alloc.Reservation{}); err == nil {
		t.Error("no error")
	}
}

// TestSynctest: a session that speaks through a conn of the test runs in a bubble, where its time-outs
// take no time.
func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(relaytest.Network)
		s, err := client.New(network.Client(client.Ticket{ID: proto.AllocationID{1}, Key: proto.Key{1}, ConnectionData: []byte{1}}))
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { _ = s.Run(context.Background()) })
		began := time.Now()
		if err := s.Bind(t.Context()); !errors.Is(err, client.ErrBindTimeout) {
			t.Errorf("Bind without a relay: %v", err)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		_ = s.Close()
		running.Wait()
	})
}
