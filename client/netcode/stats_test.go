package netcode_test

import (
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/internal/simulation"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// TestDriverStats: the counters of a driver are the sum over its connections, those included that
// have ended and those whose place another one has.
func TestDriverStats(t *testing.T) {
	rpc := newCalls(t)
	b := newTestNetwork(t, netcode.Config{RPCs: rpc.reg})
	const players, ticks = 3, 200
	for i := range players {
		node, err := b.net.Open(address.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		bad := link.Conditions{Loss: 20, Delay: 30 * ms}
		sim, err := simulation.New(node, simulation.Config{Seed: uint64(i), In: bad, Out: bad})
		if err != nil {
			t.Fatal(err)
		}
		d := b.driver(netcode.NewClient, netcode.Config{RPCs: rpc.reg, Link: sim, Rand: newChance(byte(i + 1))})
		b.clients = append(b.clients, d)
		b.connect(d)
	}
	received := 0
	run := func() {
		for range ticks {
			b.update()
			for _, d := range append([]*netcode.Driver{b.server}, b.clients...) {
				for c := range d.Conns() {
					_ = c.SendRPC(rpc.say.New([]byte("x"))) // Refused before it is connected.
				}
			}
			for c := range b.server.Conns() {
				received += len(slices.Collect(c.RPCs()))
			}
			b.flush()
		}
	}
	check := func(when string, connections int) netcode.DriverStats {
		t.Helper()
		st := b.server.Stats()
		var sum netcode.Stats
		for c := range b.server.Conns() {
			one, _ := c.Stats()
			sum.Resent += one.Resent
			sum.Duplicates += one.Duplicates
			sum.RPCsSent += one.RPCsSent
		}
		if st.Connections != connections || st.RPCsReceived != uint64(received) || st.Resent < sum.Resent || st.Duplicates < sum.Duplicates ||
			st.RPCsSent < sum.RPCsSent {
			t.Errorf("%s: %+v; the players sent %d RPCs, the connections have %+v", when, st, received, sum)
		}
		if connections == players && (st.Resent == 0 || st.Duplicates == 0) {
			t.Errorf("%s: nothing is sent twice: %+v", when, st)
		}
		return st
	}
	run()
	first := check("all play", players)
	for c := range b.server.Conns() {
		c.Disconnect(netcode.ReasonConnectionClose, "")
	}
	b.tick(50)
	ended := check("all have left", 0)
	for _, d := range b.clients {
		b.connect(d)
	}
	run()
	again := check("all play again", players)
	if ended.RPCsSent < first.RPCsSent || again.RPCsSent <= ended.RPCsSent || again.Resent <= ended.Resent {
		t.Errorf("RPCs sent %d, %d and %d, packets again %d and %d", first.RPCsSent, ended.RPCsSent, again.RPCsSent, ended.Resent, again.Resent)
	}
}
