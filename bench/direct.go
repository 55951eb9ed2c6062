package bench

import (
	"context"
	"encoding/binary"
)

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
