package link

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// joined is several links as one, for a server.
type joined struct {
	links  []Link
	kinds  []addrKind
	ended  []error // of each link, nil while it lives
	turn   int     // the link that Receive asks first
	closed bool
}

// Join returns a link for a server that receives from several links, such as sockets of IPv4
// and IPv6, a relay, and a [Network] for players in the same process. It owns them. Each must
// have another kind of addresses: UDP over IPv4, over IPv6, allocations, or those of NodeAddr.
//
// Local is that of the first link, Overhead the largest one, and Stats the sum. Dial does
// nothing. A link that ends receives nothing more, so that its peers time out; Ended follows
// when all links have ended.
//
// Errors: ErrAddr without links, or if two have the same kind. The links remain the caller's then.
func Join(links ...Link) (Link, error) {
	if len(links) == 0 {
		return nil, ErrAddr
	}
	j := &joined{links: links, ended: make([]error, len(links))}
	for _, l := range links {
		kind := kindOf(l.Local())
		if slices.Contains(j.kinds, kind) {
			return nil, ErrAddr
		}
		j.kinds = append(j.kinds, kind)
	}
	return j, nil
}

type addrKind uint8

const (
	kindIPv4 addrKind = iota
	kindIPv6
	kindAllocation
	kindNode
)

// nodePrefix has the addresses of NodeAddr. No peer of a socket has one.
var nodePrefix = netip.MustParsePrefix("2001:db8::/32")

func kindOf(a address.Addr) addrKind {
	ap, ok := a.UDP()
	switch {
	case !ok:
		return kindAllocation
	case ap.Addr().Is4():
		return kindIPv4
	case nodePrefix.Contains(ap.Addr()):
		return kindNode
	}
	return kindIPv6
}

func (j *joined) Advance(now time.Time) {
	for _, l := range j.links {
		l.Advance(now)
	}
}

// Receive asks the links in turn, so that a flooded one leaves the others their share.
func (j *joined) Receive(b []byte) Event {
	for range j.links {
		i := j.turn
		j.turn = (j.turn + 1) % len(j.links)
		if j.ended[i] != nil {
			continue
		}
		ev := j.links[i].Receive(b)
		if ev.Kind == Ended {
			j.ended[i] = ev.Err
			if slices.Contains(j.ended, nil) {
				continue
			}
			return Event{Kind: Ended, Err: errors.Join(j.ended...)}
		}
		if ev.Kind != Nothing {
			return ev
		}
	}
	return Event{}
}

func (j *joined) Send(to address.Addr, b []byte) error {
	if j.closed {
		return net.ErrClosed
	}
	i := slices.Index(j.kinds, kindOf(to))
	if i < 0 {
		return ErrAddr
	}
	return j.links[i].Send(to, b)
}

func (j *joined) Flush() {
	for _, l := range j.links {
		l.Flush()
	}
}

func (j *joined) Dial() error {
	if j.closed {
		return net.ErrClosed
	}
	return nil
}

func (j *joined) Disconnect(peer address.Addr) {
	if i := slices.Index(j.kinds, kindOf(peer)); i >= 0 {
		j.links[i].Disconnect(peer)
	}
}

func (j *joined) Local() address.Addr { return j.links[0].Local() }

func (j *joined) Overhead() (n int) {
	for _, l := range j.links {
		n = max(n, l.Overhead())
	}
	return n
}

func (j *joined) Stats() (sum Stats) {
	for _, l := range j.links {
		sum.add(l.Stats())
	}
	return sum
}

func (j *joined) Close() error {
	j.closed = true
	var errs []error
	for _, l := range j.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
