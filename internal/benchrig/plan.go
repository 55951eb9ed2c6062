package benchrig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

var (
	// ErrConfig says that a configuration has an invalid value, or values that
	// exclude each other.
	ErrConfig = errors.New("bench: invalid configuration")
	// ErrRemote says that a datagram or a call would leave this machine, which the
	// configuration does not permit.
	ErrRemote = errors.New("bench: destination outside of loopback")
)

// FamilyError says that a relay has endpoints of another family only. It wraps ErrConfig.
type FamilyError struct {
	Transport string
	Has       string
	Listed    []string // all endpoints of the relay
}

// Error returns the family and all endpoints of the relay.
func (e *FamilyError) Error() string {
	return fmt.Sprintf("%v: the relay lists endpoints for %s over %s only; it lists %s", ErrConfig, e.Transport, e.Has,
		strings.Join(e.Listed, ", "))
}

// Unwrap returns ErrConfig.
func (e *FamilyError) Unwrap() error { return ErrConfig }

// Plan is matches of one host and its players, with flows between them. Endpoint
// m*(1+Players) is the host of match m, the next Players are its players.
type Plan struct {
	Matches int // at least 1
	// Spare is how many of the last matches a Replacer makes ready, and not Open.
	Spare   int
	Players int // per match, 1 to 255, the host not counted
	Payload int // bytes after a flow's prefix, at least 24 (the stamp of the generator)
	Flows   []Link

	// Stride is the number of addresses kept for a match: 2 for pairs, so that
	// host and player differ in the lowest bit, else 256, so that the host has
	// 0 in the last byte.
	Stride int

	// AllowRemote permits destinations outside of loopback.
	AllowRemote bool
	// BindRate above 0 makes the Dialect fill in Endpoint.Rebind.
	BindRate float64
	// Keepalive is the silence before a keep-alive, which during Open the Dialect
	// sends itself. Not above 0: never.
	Keepalive time.Duration

	Sockets int // of the generator
	Batch   int // the most datagrams of one system call

	// Transport is how endpoints reach the relay. Empty: UDP.
	Transport string

	first  netip.Addr // address of endpoint 0
	single bool       // all endpoints have that address, and over UDP a socket each
}

// Link is one direction between two endpoints: From and To are their numbers.
// Datagrams of the links of one Group are due at the same time.
type Link struct {
	From, To int
	Group    int
}

// DefaultSources returns the addresses of the loopback network of a family: of IPv6 that is a
// single one. Place leaves the first and the last 65,536 of those of IPv4 to servers.
func DefaultSources(f string) netip.Prefix {
	if f == FamilyIPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return defaultSources4
}

var defaultSources4 = netip.MustParsePrefix("127.0.0.0/8")

// serverAddrs is the number of addresses at either end of those of IPv4 loopback that
// endpoints do not use.
const serverAddrs = 1 << 16

// Place gives the endpoints addresses of sources, or all of them a single one.
func (p *Plan) Place(sources netip.Prefix) error {
	p.first = sources.Masked().Addr()
	size := 1 << min(p.first.BitLen()-sources.Bits(), 62)
	if sources == defaultSources4 {
		p.first = addToAddr(p.first, serverAddrs)
		size -= 2 * serverAddrs
	}
	if p.single = sources.IsSingleIP(); p.single {
		return nil
	}
	if p.Matches*p.Stride > size || size < p.Stride {
		return fmt.Errorf("%w: %d matches with %d addresses each do not fit into %v", ErrConfig, p.Matches, p.Stride, sources)
	}
	return nil
}

func addToAddr(a netip.Addr, n uint64) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	return netip.AddrFrom16(b)
}

// Len returns the number of endpoints.
func (p *Plan) Len() int { return p.Matches * (1 + p.Players) }

// Match returns the match of endpoint i and its place in it: 0 is the host.
func (p *Plan) Match(i int) (match, place int) { return i / (1 + p.Players), i % (1 + p.Players) }

// Host returns the number of the host of endpoint i's match.
func (p *Plan) Host(i int) int { return i - i%(1+p.Players) }

// Addr returns the address of endpoint i. The two endpoints of a pair differ in the
// lowest bit; in a star the host's last byte is 0.
func (p *Plan) Addr(i int) netip.Addr {
	if p.single {
		return p.first
	}
	m, place := p.Match(i)
	return addToAddr(p.first, uint64(m*p.Stride+place))
}

// Socket returns the index of the socket of endpoint i. The endpoints of a match
// have the same one, except over UDP on a single address.
func (p *Plan) Socket(i int) int {
	if p.single && !IsTCP(p.Transport) {
		return i
	}
	m, _ := p.Match(i)
	return m * p.Sockets / p.Matches
}
