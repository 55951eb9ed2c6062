package link_test

import (
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// A server answers one player, tick by tick, over a network in memory.
func Example() {
	network := new(link.Network)
	server, _ := network.Open(address.Addr{})
	player, _ := network.Open(address.Addr{})
	defer server.Close()
	defer player.Close()

	buf := make([]byte, link.MaxDatagram)
	now := time.Now()
	for tick := 1; tick <= 3; tick++ {
		now = now.Add(time.Second / 30)
		for _, l := range []link.Link{server, player} {
			l.Advance(now)
			for e := l.Receive(buf); e.Kind != link.Nothing; e = l.Receive(buf) {
				fmt.Printf("tick %d: %q from %v\n", tick, buf[:e.N], e.Addr)
				if l == server {
					_ = l.Send(e.Addr, []byte("welcome"))
				}
			}
		}
		if tick == 1 {
			_ = player.Send(server.Local(), []byte("hello"))
		}
		network.Step()
	}
	// Output:
	// tick 2: "hello" from [2001:db8:0:2::]:7777
	// tick 3: "welcome" from [2001:db8:0:1::]:7777
}
