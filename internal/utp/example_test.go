package utp_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/utp"
)

// A client and a server that are driven by hand: what one of them sends in a
// tick, the other one receives in the next.
func Example() {
	here := address.FromUDP(netip.MustParseAddrPort("10.0.0.1:7777"))
	there := address.FromUDP(netip.MustParseAddrPort("10.0.0.2:7777"))
	client, _ := utp.New(utp.NetcodeForEntities())
	server, _ := utp.New(utp.NetcodeForEntities())
	server.Listen(true)
	client.Connect(there)

	for tick := range 6 {
		now := time.Duration(tick) * 33 * time.Millisecond
		client.Advance(now)
		server.Advance(now)
		carry(client, server, here)
		carry(server, client, there)
		client.Update()
		server.Update()
		for ev, ok := server.NextEvent(); ok; ev, ok = server.NextEvent() {
			fmt.Printf("tick %d: server: %v %q\n", tick, ev.Kind, ev.Data)
			if ev.Kind == utp.EventData {
				server.Send(ev.Conn, utp.EntitiesReliable, []byte("welcome"))
			}
		}
		for ev, ok := client.NextEvent(); ok; ev, ok = client.NextEvent() {
			fmt.Printf("tick %d: client: %v %q\n", tick, ev.Kind, ev.Data)
			if ev.Kind == utp.EventConnected {
				client.Send(ev.Conn, utp.EntitiesReliable, []byte("hello"))
			}
		}
		client.Flush()
		server.Flush()
	}
	// Output:
	// tick 1: server: incoming ""
	// tick 2: client: connected ""
	// tick 3: server: data "hello"
	// tick 4: client: data "welcome"
}

func carry(from, to *utp.Endpoint, source address.Addr) {
	for _, data, ok := from.Next(); ok; _, data, ok = from.Next() {
		to.Receive(source, data)
	}
}
