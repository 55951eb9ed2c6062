package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// sideBatch is the maximum number of datagrams that a socket of a Fleet sends
// or receives at once.
const sideBatch = 256

// side is the sockets of all hosts or all joiners. Each socket sends from and
// receives for the addresses of all its players. The goroutine of the Fleet
// owns it.
type side struct {
	sockets []*socket
}

// socket is one port of a side.
type socket struct {
	relay         netip.AddrPort // to which its players send
	group         *sock.Group
	conn          *sock.Conn
	rx            *sock.RecvBatch
	tx            *sock.SendBatch
	arena         []byte              // backing array of the datagrams in tx
	to            []endpoint.Endpoint // by player: the relay's address with the player's local address
	playerByLocal []int32             // player by index of the local address; -1: none
}

// openSide opens the ports of a side with n players.
func openSide(place SideConfig, relay netip.AddrPort, ports, n int) (s side, err error) {
	if place.Via.IsValid() {
		relay = place.Via
	}
	addrs := make([]netip.Addr, n)
	next := place.First
	for i := range addrs {
		addrs[i], next = next, next.Next()
	}
	for range ports {
		one := new(socket)
		do := place.Do
		if do == nil {
			do = func(f func() error) error { return f() }
		}
		if err := do(func() error { return one.open(relay, addrs) }); err != nil {
			return s, errors.Join(err, s.close())
		}
		s.sockets = append(s.sockets, one)
	}
	return s, nil
}

func (s *socket) open(relay netip.AddrPort, addrs []netip.Addr) error {
	any := netip.IPv4Unspecified()
	if relay.Addr().Is6() {
		any = netip.IPv6Unspecified()
	}
	// With GSO, several datagrams would cross a veth as one.
	group, err := sock.Listen(sock.Config{Addr: netip.AddrPortFrom(any, 0), Batch: sideBatch, DisableGSO: true}, 1)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	numbers, err := group.Locals(addrs)
	if err != nil {
		return errors.Join(fmt.Errorf("lab: %w", err), group.Close())
	}
	s.relay, s.group, s.conn = relay, group, group.Conns()[0]
	s.rx, s.tx = s.conn.NewRecvBatch(), s.conn.NewSendBatch(sideBatch)
	s.arena = make([]byte, 0, sideBatch*sock.SlotSize)
	for i, number := range numbers {
		s.to = append(s.to, endpoint.UDP(relay, number, 0))
		for len(s.playerByLocal) <= int(number) {
			s.playerByLocal = append(s.playerByLocal, -1)
		}
		s.playerByLocal[number] = int32(i)
	}
	return nil
}

func (s *side) close() error {
	var errs []error
	for _, one := range s.sockets {
		errs = append(errs, one.group.Close())
	}
	return errors.Join(errs...)
}

// send queues a copy of a player's datagram and returns how many datagrams the
// kernel refused.
func (s *side) send(p *player, pkt []byte) uint64 {
	one := s.sockets[p.port]
	var unsent uint64
	if one.tx.Len() == sideBatch {
		unsent = one.flush()
	}
	start := len(one.arena)
	one.arena = append(one.arena, pkt...)
	one.tx.Add(one.to[p.number], one.arena[start:len(one.arena):len(one.arena)])
	return unsent
}

func (s *side) flush() (unsent uint64) {
	for _, one := range s.sockets {
		unsent += one.flush()
	}
	return unsent
}

func (s *socket) flush() uint64 {
	if s.tx.Len() == 0 {
		return 0
	}
	result := s.conn.Send(s.tx)
	s.arena = s.arena[:0]
	return uint64(result.Failed)
}

// receive passes each available datagram to its player.
func (s *side) receive(f *Fleet, role int) {
	for port, one := range s.sockets {
		for {
			n, err := one.conn.TryRecv(one.rx)
			if err != nil || n == 0 {
				break
			}
			one.deliver(f, role, port, n)
			if n < sideBatch {
				break
			}
		}
	}
}

func (s *socket) deliver(f *Fleet, role, port, n int) {
	now := sock.Now()
	for i := range n {
		from, pkt, truncated := s.rx.At(i)
		p := f.playerAt(s, role, from.Local())
		if p == nil || truncated || p.port != port || p.departed {
			f.counts.Stray++ // for an address without a player, or a former port
			continue
		}
		if from.AddrPort() != s.relay { // It is not from the address that the player sends to.
			f.counts.Unexpected++
			continue
		}
		p.handle(f, now, pkt)
	}
}

// playerAt returns the player with a local address, or nil.
func (f *Fleet) playerAt(s *socket, role int, local uint16) *player {
	if int(local) >= len(s.playerByLocal) || s.playerByLocal[local] < 0 {
		return nil
	}
	i := 2*int(s.playerByLocal[local]) + role
	if i >= len(f.players) {
		return nil
	}
	return f.players[i]
}
