package storetest

import (
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

// RunRegistry puts registries made by new through the tests. Each call of new
// returns an empty registry, and what has it forget everything.
func RunRegistry(t *testing.T, new func(t *testing.T) (r placement.Registry, lose func())) {
	t.Run("Announce", func(t *testing.T) { r, _ := new(t); testAnnounce(t, r) })
	t.Run("NewBoot", func(t *testing.T) { r, _ := new(t); testNewBoot(t, r) })
	t.Run("Withdraw", func(t *testing.T) { r, _ := new(t); testWithdraw(t, r) })
	t.Run("Lost", func(t *testing.T) { r, lose := new(t); testLost(t, r, lose) })
	t.Run("ManyAtOnce", func(t *testing.T) { r, _ := new(t); testManyNodes(t, r) })
}

// node is a relay that says all there is to say; those of different n differ.
func node(n int, boot uint64) placement.Node {
	return placement.Node{
		Relay: alloc.RelayID{0: 0xB0, 14: byte(n >> 8), 15: byte(n)}, Boot: boot,
		Region: "north", Description: "the \"north\", 北", QoSAddress: "198.51.100.7:7777", Control: "10.0.0.1:7779",
		Endpoints: []alloc.ServerEndpoint{
			{ConnectionType: "udp", Network: "udp", Host: "198.51.100.7", Port: 7777},
			{ConnectionType: "wss", Network: "tcp", Host: "relay.example", Port: 443, Reliable: true, Secure: true},
		},
		Usage: placement.Usage{
			Seats: 1000 + n, Taken: 17, Load: 0.375, Players: 12, Matches: 3,
			Allocations: 14, Links: 9, Up: time.Hour,
			Traffic: placement.Traffic{Received: 1.5, ReceivedBytes: 150, Sent: 2.5, SentBytes: 250, Dropped: 0.25},
		},
		Version: "v1.2.3", Draining: n%2 == 1, Stopped: n%4 == 1, Healing: n%2 == 0, RecoverFor: time.Minute,
	}
}

func testAnnounce(t *testing.T, r placement.Registry) {
	wantNodes(t, r)
	wantIntact(t, r, node(1, 5), false)
	wantNodes(t, r, node(1, 5))
	wantIntact(t, r, node(1, 5), true)
	changed := node(1, 5)
	changed.Taken, changed.Draining, changed.Endpoints = 900, true, nil
	wantIntact(t, r, changed, true)
	wantNodes(t, r, changed)
	wantIntact(t, r, node(2, 1<<64-1), false)
	wantIntact(t, r, changed, true)
	wantNodes(t, r, changed, node(2, 1<<64-1))
}

func testNewBoot(t *testing.T, r placement.Registry) {
	wantIntact(t, r, node(1, 5), false)
	wantIntact(t, r, node(1, 5), true)
	wantIntact(t, r, node(1, 6), false)
	wantIntact(t, r, node(1, 6), true)
	wantNodes(t, r, node(1, 6))
}

func testWithdraw(t *testing.T, r placement.Registry) {
	wantIntact(t, r, node(1, 5), false)
	wantIntact(t, r, node(2, 5), false)
	withdraw := func(n placement.Node, boot uint64) {
		t.Helper()
		if err := r.Withdraw(t.Context(), n.Relay, boot); err != nil {
			t.Fatal(err)
		}
	}
	withdraw(node(1, 5), 4)
	withdraw(node(3, 5), 5)
	wantNodes(t, r, node(1, 5), node(2, 5))
	wantIntact(t, r, node(1, 5), true)
	withdraw(node(1, 5), 5)
	withdraw(node(1, 5), 5)
	wantNodes(t, r, node(2, 5))
	wantIntact(t, r, node(1, 5), false)
	wantIntact(t, r, node(1, 5), true)
}

// testLost: a relay learns once that what it announced is gone.
func testLost(t *testing.T, r placement.Registry, lose func()) {
	wantIntact(t, r, node(1, 5), false)
	wantIntact(t, r, node(1, 5), true)
	for range 3 {
		lose()
		wantNodes(t, r)
		wantIntact(t, r, node(1, 5), false)
		wantIntact(t, r, node(1, 5), true)
		wantNodes(t, r, node(1, 5))
	}
}

func testManyNodes(t *testing.T, r placement.Registry) {
	const relays, beats = 50, 4
	var wg sync.WaitGroup
	var want []placement.Node
	for n := range relays {
		want = append(want, node(n, 1))
		wg.Go(func() {
			for beat := range beats {
				if intact, err := r.Announce(t.Context(), node(n, 1)); err != nil || intact != (beat > 0) {
					t.Errorf("relay %d, beat %d: Announce = %v, %v", n, beat, intact, err)
				}
				if _, err := r.Nodes(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantNodes(t, r, want...)
}

func wantIntact(t *testing.T, r placement.Registry, n placement.Node, want bool) {
	t.Helper()
	if intact, err := r.Announce(t.Context(), n); err != nil || intact != want {
		t.Errorf("Announce = %v, %v; want %v", intact, err, want)
	}
}

// wantNodes expects these nodes, in any order, none of them older than the test
// may have taken.
func wantNodes(t *testing.T, r placement.Registry, want ...placement.Node) {
	t.Helper()
	seen, err := r.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byRelay := make(map[alloc.RelayID]placement.Node)
	for _, s := range seen {
		if s.Age < 0 || s.Age > time.Hour {
			t.Errorf("relay %v announced itself %v ago", s.Relay, s.Age)
		}
		byRelay[s.Relay] = s.Node
	}
	if len(seen) != len(want) || len(byRelay) != len(want) {
		t.Errorf("Nodes returned %d entries of %d relays, want %d", len(seen), len(byRelay), len(want))
	}
	for _, n := range want {
		if !reflect.DeepEqual(byRelay[n.Relay], n) {
			t.Errorf("Nodes has %+v; want %+v", byRelay[n.Relay], n)
		}
	}
}
