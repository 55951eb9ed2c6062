package bench

import (
	"errors"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// driverLink is the link of one endpoint's driver, over the generator's sockets. Its
// addresses are the numbers of endpoints. The generator's goroutine owns it.
type driverLink struct {
	play  *netplay
	ep    int
	flows map[address.Addr]int32 // to each peer
	in    []inbound              // valid until the driver has taken it, in the same round
	next  int
	stats link.Stats
}

type inbound struct {
	from int32 // endpoint
	data []byte
}

var _ link.Link = (*driverLink)(nil)

func driverAddr(ep int) address.Addr { return link.NodeAddr(uint32(ep) + 1) }

var errNoFlow = errors.New("bench: no flow to this endpoint")

func (c *driverLink) Advance(time.Time) {}

func (c *driverLink) Receive(b []byte) link.Event {
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

func (c *driverLink) Send(to address.Addr, b []byte) error {
	i, ok := c.flows[to]
	if !ok {
		return errNoFlow
	}
	c.stats.Sent++
	c.stats.SentBytes += uint64(len(b))
	c.play.wire = max(c.play.wire, len(c.play.rig.Flows[i].Prefix)+len(b))
	return c.play.send(i, b)
}

func (c *driverLink) Flush()                  {}
func (c *driverLink) Dial() error             { return nil }
func (c *driverLink) Disconnect(address.Addr) {}
func (c *driverLink) Local() address.Addr     { return c.play.addrs[c.ep] }
func (c *driverLink) Stats() link.Stats       { return c.stats }
func (c *driverLink) Close() error            { return nil }

// Overhead returns the size in bytes of the header of datagrams that arrive.
func (c *driverLink) Overhead() int {
	return c.play.rig.Sockets[c.play.rig.Endpoints[c.ep].Socket].Offset
}
