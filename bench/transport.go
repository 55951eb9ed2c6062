package bench

import (
	"errors"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// carrier is the link of one endpoint's driver: what it sends goes over the
// shared sockets of the generator, with the header of its flow. Its addresses
// number endpoints. The generator's goroutine owns it.
type carrier struct {
	play  *netplay
	ep    int
	flows map[address.Addr]int32 // to each peer
	in    []inbound              // valid until the driver has taken it, in the same round
	next  int
	stats link.Stats
}

// inbound is a datagram without its header, and whom it is from.
type inbound struct {
	from int32 // endpoint
	data []byte
}

var _ link.Link = (*carrier)(nil)

func addrOf(ep int) address.Addr { return link.NodeAddr(uint32(ep) + 1) }

// errNoFlow is a datagram to an endpoint that the plan has no flow to.
var errNoFlow = errors.New("bench: no flow leads there")

func (c *carrier) Advance(time.Time) {}

func (c *carrier) Receive(b []byte) link.Event {
	if c.next == len(c.in) {
		c.in, c.next = c.in[:0], 0
		return link.Event{}
	}
	d := c.in[c.next]
	c.next++
	c.stats.Received++
	c.stats.ReceivedBytes += uint64(len(d.data))
	return link.Event{Kind: link.Datagram, Addr: c.play.addrs[d.from], N: copy(b, d.data)}
}

// waits reports whether a datagram of an endpoint was not taken yet.
func (c *carrier) waits(from int32) bool {
	for i := range c.in {
		if c.in[i].from == from {
			return true
		}
	}
	return false
}

func (c *carrier) Send(to address.Addr, b []byte) error {
	i, ok := c.flows[to]
	if !ok {
		return errNoFlow
	}
	c.stats.Sent++
	c.stats.SentBytes += uint64(len(b))
	c.play.wire = max(c.play.wire, len(c.play.rig.Flows[i].Prefix)+len(b))
	return c.play.send(i, b)
}

func (c *carrier) Flush()                  {}
func (c *carrier) Dial() error             { return nil }
func (c *carrier) Disconnect(address.Addr) {}
func (c *carrier) Local() address.Addr     { return c.play.addrs[c.ep] }
func (c *carrier) Stats() link.Stats       { return c.stats }
func (c *carrier) Close() error            { return nil }

// Overhead is the header in front of what arrives.
func (c *carrier) Overhead() int { return c.play.rig.Sockets[c.play.rig.Endpoints[c.ep].Socket].Offset }

// seal puts the record with a datagram of a flow into the same memory.
func (g *generator) seal(f *flow, room, pkt []byte) []byte {
	g.plain = append(g.plain[:0], pkt...)
	return f.cipher.Seal(room[:0], g.plain)
}
