package link

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// udpBatch is how many datagrams leave in one system call, 94 kB of copies.
const udpBatch = 64

// udp has no goroutine: Receive reads up to 64 datagrams in one system call,
// and Send gathers as many.
type udp struct {
	group       *sock.Group
	conn        *sock.Conn
	local       address.Addr
	ipv4        bool // the family of local
	in          *sock.RecvBatch
	next        int // datagram of in that is handed out next
	have        int // datagrams in in
	out         *sock.SendBatch
	slab        []byte // copies of the datagrams of out
	sources     sources
	err         error // why the link ended
	errReported bool  // of err
	stats       Stats
}

var _ Link = (*udp)(nil)

// OpenUDP returns a link over a socket. A zero address means any IPv4 address, port 0 a free
// port. On a wildcard address, a peer that sends first is answered from the address that it sent
// to, as package sock can in this build. An Addr has no zone: link-local IPv6 is refused.
//
// The kernel's buffers have 4 MiB or what it grants; Stats.KernelDrops counts what did not fit.
// Errors: ErrAddr for a link-local address of IPv6, else the system's.
func OpenUDP(local netip.AddrPort) (Link, error) {
	if !local.IsValid() {
		local = netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port())
	}
	if needsZone(local.Addr()) {
		return nil, ErrAddr
	}
	group, err := sock.Listen(sock.Config{Addr: local}, 1)
	if err != nil {
		return nil, fmt.Errorf("link: open UDP: %w", err)
	}
	conn := group.Conns()[0]
	return &udp{
		group: group,
		conn:  conn,
		local: address.FromUDP(group.Addr()),
		ipv4:  group.Addr().Addr().Unmap().Is4(),
		in:    conn.NewRecvBatch(),
		out:   conn.NewSendBatch(udpBatch),
		slab:  make([]byte, udpBatch*MaxDatagram),

		sources: sources{wildcard: local.Addr().IsUnspecified()},
	}, nil
}

// sources are the local addresses from which peers are answered, by the numbers of package sock:
// the newest that a peer sent to. A peer that this side sent to first has 0, so that the kernel
// chooses, and follows a change of the network. Two maps bound it: when the newer one is full, the
// older one is dropped, with the peers that it has alone.
type sources struct {
	wildcard     bool // else the socket has one address, and nothing is kept
	newer, older map[netip.AddrPort]uint16
}

// maxSources bounds each map, 0.5 MB.
const maxSources = 8192

func (s *sources) receive(peer netip.AddrPort, local uint16) {
	if !s.wildcard || local == 0 {
		return
	}
	if old, known := s.find(peer); !known || old != 0 && old != local {
		s.set(peer, local)
	}
}

func (s *sources) send(peer netip.AddrPort) uint16 {
	if !s.wildcard {
		return 0
	}
	local, known := s.find(peer)
	if !known {
		s.set(peer, 0)
	}
	return local
}

func (s *sources) find(peer netip.AddrPort) (local uint16, known bool) {
	if local, known = s.newer[peer]; known {
		return local, true
	}
	if local, known = s.older[peer]; known {
		s.set(peer, local)
	}
	return local, known
}

func (s *sources) set(peer netip.AddrPort, local uint16) {
	if s.newer == nil || len(s.newer) >= maxSources {
		s.newer, s.older = make(map[netip.AddrPort]uint16), s.newer
	}
	s.newer[peer] = local
}

// needsZone reports whether datagrams reach an address only with the name of an interface.
func needsZone(ip netip.Addr) bool { return ip.Is6() && ip.IsLinkLocalUnicast() }

func (u *udp) Advance(time.Time) {}

func (u *udp) Receive(b []byte) Event {
	for {
		if u.next == u.have && !u.refill() {
			return u.end()
		}
		from, pkt, truncated := u.in.At(u.next)
		u.next++
		addr := from.AddrPort()
		if truncated || len(pkt) > min(len(b), MaxDatagram) || !addr.IsValid() || addr.Port() == 0 || needsZone(addr.Addr()) {
			u.stats.Discarded++
			continue
		}
		u.sources.receive(addr, from.Local())
		u.stats.Received++
		u.stats.ReceivedBytes += uint64(len(pkt))
		return Event{Kind: Datagram, Addr: address.FromUDP(addr), N: copy(b, pkt)}
	}
}

func (u *udp) refill() bool {
	u.next, u.have = 0, 0
	if u.err != nil {
		return false
	}
	u.have, u.err = u.conn.TryRecv(u.in)
	return u.have > 0
}

func (u *udp) end() Event {
	if u.err == nil || u.errReported {
		return Event{}
	}
	u.errReported = true
	return Event{Kind: Ended, Err: u.err}
}

// Send adds to the batch that Flush sends, or this call when the batch is full.
func (u *udp) Send(to address.Addr, b []byte) error {
	addr, ok := to.UDP()
	switch {
	case u.err != nil:
		return u.err
	case len(b) > MaxDatagram:
		return ErrTooLarge
	case !ok || addr.Port() == 0 || addr.Addr().Is4() != u.ipv4 || needsZone(addr.Addr()):
		return ErrAddr
	}
	at := u.out.Len() * MaxDatagram
	pkt := u.slab[at : at+copy(u.slab[at:at+MaxDatagram], b)]
	u.out.Add(endpoint.UDP(addr, u.sources.send(addr), 0), pkt)
	if u.out.Len() == udpBatch {
		u.Flush()
	}
	return nil
}

func (u *udp) Flush() {
	if u.out.Len() == 0 {
		return
	}
	res := u.conn.Send(u.out)
	u.stats.Sent += uint64(res.Sent)
	u.stats.SentBytes += uint64(res.Bytes)
	u.stats.Unsent += uint64(res.Failed)
}

func (u *udp) Dial() error { return u.err }

func (u *udp) Disconnect(address.Addr) {}

func (u *udp) Local() address.Addr { return u.local }

func (u *udp) Overhead() int { return 0 }

func (u *udp) Stats() Stats {
	st := u.stats
	st.KernelDrops = u.conn.Stats().KernelDrops
	return st
}

func (u *udp) Close() error {
	if u.errReported && u.err == net.ErrClosed {
		return nil
	}
	u.Flush()
	u.next, u.have = 0, 0
	u.err, u.errReported = net.ErrClosed, true
	return u.group.Close()
}
