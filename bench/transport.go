package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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

// Direct is the Dialect without a relay: datagrams go straight to the other
// endpoint. It is the baseline of a machine: what it costs the generator to
// send and to receive, and what the kernel adds to latency.
type Direct struct {
	// Header is the number of bytes in front of the payload. 0 = none.
	Header int
}

// Name is "direct".
func (Direct) Name() string { return "direct" }

// Open has nobody to ask.
func (d Direct) Open(_ context.Context, p Plan) (*Rig, error) {
	r, err := NewRig(p)
	if err != nil {
		return nil, err
	}
	size := max(d.Header, 0)
	for _, s := range r.Sockets {
		s.Offset = size
	}
	headers := make([]byte, size*len(p.Flows))
	for i, l := range p.Flows {
		header := headers[i*size : (i+1)*size : (i+1)*size]
		if size >= 4 { // So that a receiver can tell whom a datagram is from.
			binary.BigEndian.PutUint32(header, uint32(i))
		}
		r.Flows = append(r.Flows, Flow{From: l.From, To: l.To, Dst: r.Endpoints[l.To].Addr, Prefix: header})
	}
	return r, nil
}

// Cipher encrypts the way between an endpoint and the relay, datagram by
// datagram, as DTLS does. One goroutine uses it at a time.
type Cipher interface {
	// Seal appends to dst what is sent for msg, which has Overhead bytes more.
	Seal(dst, msg []byte) []byte
	// Open returns the message in a datagram, within whose memory it lies, and
	// nil if there is none.
	Open(pkt []byte) []byte
	Overhead() int
}

// decrypt returns what a datagram to an endpoint says, nil if nothing.
func (r *Rig) decrypt(ep int32, pkt []byte) []byte {
	if ep < 0 || r.Endpoints[ep].Cipher == nil {
		return pkt
	}
	return r.Endpoints[ep].Cipher.Open(pkt)
}

// encrypt returns what an endpoint sends for a message.
func (r *Rig) encrypt(ep int, msg []byte) []byte {
	if c := r.Endpoints[ep].Cipher; c != nil {
		return c.Seal(nil, msg)
	}
	return msg
}

// overhead is by how much a datagram of an endpoint is longer than its message.
func (r *Rig) overhead(ep int) int {
	if c := r.Endpoints[ep].Cipher; c != nil {
		return c.Overhead()
	}
	return 0
}

// seal puts the record with a datagram of a flow into the same memory.
func (g *generator) seal(f *flow, room, pkt []byte) []byte {
	g.plain = append(g.plain[:0], pkt...)
	return f.cipher.Seal(room[:0], g.plain)
}

// DefaultHeader is the header that Swap puts in front of a payload, in bytes:
// that of RELAY, so that datagrams have the same size with both dialects.
const DefaultHeader = 38

// Swap is the Dialect of relays that look nothing up and find the destination
// by arithmetic on the source address, such as NullRelay and the bare loop of C
// in scripts/. They send each datagram back, unchanged, to the port it came
// from and to this address:
//
//	pairs  the source address with its lowest bit flipped
//	star   from a player, whose last byte is not 0: the source address with 0
//	       there, its host; from a host: the last byte is the first byte of the
//	       datagram
//
// A plan with one player per host that is no star uses pairs.
type Swap struct {
	// Relay is where the relay listens. Required.
	Relay netip.AddrPort
	// Label is the name in tables. Default "swap".
	Label string
	// Header is the number of bytes in front of the payload, of which the
	// first says which player a host means. 0 = DefaultHeader; at least 1.
	Header int
}

// Name is Label.
func (d Swap) Name() string {
	if d.Label != "" {
		return d.Label
	}
	return "swap"
}

// Open sends one datagram through the relay to see that it is there.
func (d Swap) Open(ctx context.Context, p Plan) (*Rig, error) {
	setDefault(&d.Header, DefaultHeader)
	if d.Header < 1 {
		return nil, fmt.Errorf("%w: header of %d bytes", ErrConfig, d.Header)
	}
	if p.single {
		return nil, fmt.Errorf("%w: %s tells endpoints apart by address", ErrConfig, d.Name())
	}
	r, err := NewRig(p)
	if err != nil {
		return nil, err
	}
	for _, s := range r.Sockets {
		s.Offset = d.Header
	}
	mem := make([]byte, len(p.Flows)*d.Header)
	for i, l := range p.Flows {
		prefix := mem[i*d.Header : (i+1)*d.Header : (i+1)*d.Header]
		_, place := p.Match(l.To)
		prefix[0] = byte(place)
		r.Flows = append(r.Flows, Flow{From: l.From, To: l.To, Dst: d.Relay, Prefix: prefix})
	}
	if err := d.probe(ctx, r); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// probe sends along the first flow until something arrives where it should.
func (d Swap) probe(ctx context.Context, r *Rig) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	f := &r.Flows[0]
	pkt := append(bytes.Clone(f.Prefix), "probe"...)
	r.Explain = func(got []byte) string {
		if bytes.Equal(got, pkt) {
			return "" // One more answer to the probe.
		}
		return "foreign"
	}
	arrived, sent := false, time.Time{}
	err := r.Await(ctx, func() bool { return arrived }, func(now time.Time) error {
		if now.Sub(sent) < 100*time.Millisecond {
			return nil
		}
		sent = now
		return r.SendTo(f.From, f.Dst, pkt)
	}, func(ep int, _ netip.AddrPort, got []byte) {
		arrived = arrived || ep == f.To && bytes.Equal(got, pkt)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("bench: nothing comes back from %v: is there a relay that swaps by address, in the mode of this shape?", d.Relay)
	}
	return err
}
