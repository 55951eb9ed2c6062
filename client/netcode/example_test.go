package netcode_test

import (
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// server is a tiny authoritative server: it moves bots along a line by their
// commands, and sends their positions to all clients.
type server struct {
	*netcode.Driver
	hello netcode.RPCType[[]byte]
	world [3]byte // by NetworkID
}

func (s *server) turn(tick uint32, now time.Time) {
	_ = s.Update(now)
	for c := range s.Conns() {
		for r := range c.RPCs() {
			if name, ok := s.hello.From(r); ok {
				fmt.Printf("tick %d: %s wants to play\n", tick, name)
				_ = c.Approve()
			}
		}
		c.SetInGame(c.State() == netcode.StateConnected)
		for command := range c.Commands() {
			s.world[c.NetworkID()] += command.Data[0]
		}
	}
	for c := range s.Conns() {
		_ = c.SendSnapshot(tick, s.world[:])
	}
	s.Flush()
}

// bot is a player that tells its name to be let in, and then walks.
type bot struct {
	*netcode.Driver
	hello netcode.RPCType[[]byte]
	name  string
	speed byte
	seen  string
}

func (b *bot) turn(tick uint32, now time.Time) {
	_ = b.Update(now)
	for _, ev := range b.Events() {
		switch ev.State {
		case netcode.StateApproval:
			_ = ev.Conn.SendRPC(b.hello.New([]byte(b.name)))
		case netcode.StateConnected:
			fmt.Printf("tick %d: %s has id %d\n", tick, b.name, ev.NetworkID)
			ev.Conn.SetInGame(true)
		}
	}
	for c := range b.Conns() {
		_ = c.SendCommand(tick, []byte{b.speed})
		if _, world, ok := c.Snapshot(); ok {
			b.seen = fmt.Sprint(world[1:])
		}
	}
	b.Flush()
}

// A server and two bots play over a network in memory. Over UDP or a relay only
// the links are others.
func Example() {
	rpcs := new(netcode.RPCRegistry)
	hello, _ := netcode.RegisterApprovalRPC(rpcs, "hello", netcode.Raw())
	network := new(link.Network)
	home, _ := network.Open(address.Addr{})
	d, err := netcode.NewServer(netcode.Config{Link: home, RPCs: rpcs, RequireApproval: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	_ = d.Listen(address.Addr{})
	s := &server{Driver: d, hello: hello}

	var bots []*bot
	for i := range 2 {
		node, _ := network.Open(address.Addr{})
		d, err := netcode.NewClient(netcode.Config{Link: node, RPCs: rpcs})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer d.Close()
		_, _ = d.Connect(home.Local())
		bots = append(bots, &bot{Driver: d, hello: hello, name: fmt.Sprint("bot ", i), speed: byte(i + 1)})
	}

	now := time.Now()
	for tick := uint32(1); tick <= 20; tick++ {
		now = now.Add(time.Second / 30)
		s.turn(tick, now)
		for _, b := range bots {
			b.turn(tick, now)
		}
		network.Step()
	}
	for _, b := range bots {
		fmt.Println(b.name, "sees", b.seen)
	}
	// Output:
	// tick 6: bot 0 wants to play
	// tick 6: bot 1 wants to play
	// tick 8: bot 0 has id 1
	// tick 8: bot 1 has id 2
	// bot 0 sees [11 22]
	// bot 1 sees [11 22]
}
