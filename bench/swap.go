package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

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
