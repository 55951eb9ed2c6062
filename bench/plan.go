package bench

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// serverAddrs are the addresses at the beginning of 127.0.0.0/8 that are left to
// servers: all of that network is this machine.
const serverAddrs = 1 << 16

// plan lays out the endpoints and flows of a checked configuration.
func (cfg *Config) plan() (Plan, error) {
	p := Plan{
		Matches: cfg.Matches, Players: cfg.Players, Payload: cfg.Payload, Stride: 2,
		AllowRemote: cfg.AllowRemote, BindRate: cfg.BindRate, Keepalive: cfg.Keepalive,
		Sockets: cfg.Sockets, ReadBuffer: cfg.ReadBuffer, Batch: cfg.Batch,
	}
	if cfg.Players > 1 || cfg.Shape == ShapeStar || cfg.Shape == ShapeNetcode {
		p.Stride = 256
	}
	if err := p.place(cfg.Sources); err != nil {
		return p, err
	}
	for m := range p.Matches {
		p.Flows = append(p.Flows, cfg.links(m)...)
	}
	switch cfg.Align {
	case AlignTick:
		for i := range p.Flows {
			p.Flows[i].Group = 0
		}
	case AlignEven:
		for i := range p.Flows {
			p.Flows[i].Group = i
		}
	}
	return p, nil
}

// place finds the first address.
func (p *Plan) place(sources netip.Prefix) error {
	a := sources.Masked().Addr().As4()
	p.first = binary.BigEndian.Uint32(a[:])
	size := 1 << (32 - sources.Bits())
	if sources == defaultSources {
		p.first += serverAddrs
		size -= 2 * serverAddrs
	}
	if p.single = sources.IsSingleIP(); p.single {
		return nil
	}
	if p.Matches*p.Stride > size || p.first%uint32(p.Stride) != 0 {
		return fmt.Errorf("%w: %d matches with %d addresses each do not fit into %v", ErrConfig, p.Matches, p.Stride, sources)
	}
	return nil
}

// links returns the flows of match m: first all up, then all down, as a game's
// tick has it.
func (cfg *Config) links(m int) (links []Link) {
	host := m * (1 + cfg.Players)
	if cfg.Direction != DirectionDown {
		for j := 1; j <= cfg.Players; j++ {
			links = append(links, Link{From: host + j, To: host, Group: m})
		}
	}
	if cfg.Direction != DirectionUp {
		for j := 1; j <= cfg.Players; j++ {
			links = append(links, Link{From: host, To: host + j, Group: m})
		}
	}
	return links
}

// Len returns the number of endpoints.
func (p *Plan) Len() int { return p.Matches * (1 + p.Players) }

// Match returns the match of endpoint i and its place in it: 0 is the host.
func (p *Plan) Match(i int) (match, place int) { return i / (1 + p.Players), i % (1 + p.Players) }

// Host returns the number of the host of endpoint i's match.
func (p *Plan) Host(i int) int { return i - i%(1+p.Players) }

// Addr returns the address of endpoint i. Partners of a pair differ in the
// lowest bit; in a star the host's last byte is 0.
func (p *Plan) Addr(i int) netip.Addr {
	n := p.first
	if !p.single {
		m, place := p.Match(i)
		n += uint32(m*p.Stride + place)
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a)
}

// socket returns the socket of endpoint i: matches are kept together.
func (p *Plan) socket(i int) int {
	if p.single {
		return i
	}
	m, _ := p.Match(i)
	return m * p.Sockets / p.Matches
}
