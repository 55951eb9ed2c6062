package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/ferryrelay/ferry/proto"
)

// playersPort is the port of all players; each has an address of its own.
const playersPort = 4000

// framesSources are the addresses of the players of `peers frames`: enough for a million.
const framesSources = "10.0.0.0/8"

// framePlayer is a player of `peers frames`.
type framePlayer struct {
	addr          netip.Addr
	id            proto.AllocationID
	host, first   int // indices of its host and of that one's first joiner; its own for these
	bind, connect []byte
	left          atomic.Int32 // answers that it waits for
}

// readPlayers reads what embed wrote.
func readPlayers(file string, joiners int) (all []framePlayer, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for len(b) > 0 {
		var r record
		if r, b, err = readPlayer(b); err != nil {
			return nil, err
		}
		all = append(all, framePlayer{id: r.id, bind: r.bind, connect: r.connect})
		all[len(all)-1].place(len(all)-1, joiners)
	}
	return all, nil
}

// place sets what follows from the index of a player.
func (p *framePlayer) place(i, joiners int) {
	p.addr = playerAddr(i, joiners)
	p.host, p.first = i-i%(1+joiners), i
	if p.host == i {
		p.first = i + 1
	}
}

// playerAddr numbers the players so that the C loop finds a player's peer by arithmetic.
func playerAddr(i, joiners int) netip.Addr {
	n := uint32(10)<<24 + 256
	if joiners == 1 {
		n += uint32(i)
	} else {
		n += uint32(i/(1+joiners))<<8 + uint32(i%(1+joiners))
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

type record struct {
	id            proto.AllocationID
	bind, connect []byte
}

var errRecord = errors.New("a record of a player is cut off")

func readPlayer(b []byte) (r record, rest []byte, err error) {
	if len(b) < len(r.id) {
		return r, nil, errRecord
	}
	copy(r.id[:], b)
	b = b[len(r.id):]
	for _, msg := range []*[]byte{&r.bind, &r.connect} {
		if len(b) < 2 || len(b) < 2+int(binary.BigEndian.Uint16(b)) {
			return r, nil, errRecord
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		*msg, b = b[2:n:n], b[n:]
	}
	return r, b, nil
}

// bindAll binds all players, and connects them to their hosts. One socket sends for all: the
// namespace has their addresses.
func bindAll(ctx context.Context, relay netip.AddrPort, players []framePlayer, joiners int) error {
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{Port: playersPort})
	if err != nil {
		return err
	}
	defer udp.Close()
	if err := errors.Join(udp.SetReadBuffer(4<<20), udp.SetWriteBuffer(4<<20)); err != nil {
		return err
	}
	conn := ipv4.NewPacketConn(udp)
	if err := conn.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return err
	}
	b := binder{conn: conn, relay: net.UDPAddrFromAddrPort(relay), players: players, joiners: joiners}
	read := make(chan struct{})
	go func() { defer close(read); b.read() }()
	defer func() { udp.Close(); <-read }()
	// By parts: Ferry before November 2026 closed a link without a RELAY after 10 s.
	for part := players; len(part) > 0; {
		n := min(len(part), bindPart-bindPart%(1+joiners))
		if err := b.enter(ctx, part[:n]); err != nil {
			return err
		}
		part = part[n:]
	}
	return nil
}

// bindPart is how many players enter at once.
const bindPart = 20_000

// enter binds players, connects them, and sends the first RELAY of each link both ways.
func (b *binder) enter(ctx context.Context, part []framePlayer) error {
	steps := []struct {
		name string
		// of returns what makes the player get an answer, and its sender; nil: nothing does.
		of func(*framePlayer) ([]byte, *framePlayer)
	}{
		{"BIND", func(p *framePlayer) ([]byte, *framePlayer) { return p.bind, p }},
		{"CONNECT_REQUEST", func(p *framePlayer) ([]byte, *framePlayer) { return p.connect, p }},
		{"RELAY to hosts", func(p *framePlayer) ([]byte, *framePlayer) { return b.hello(p, p.first) }},
		{"RELAY to joiners", func(p *framePlayer) ([]byte, *framePlayer) { return b.hello(p, p.host) }},
	}
	for _, s := range steps {
		for i := range part {
			if msg, _ := s.of(&part[i]); len(msg) > 0 {
				part[i].left.Store(1)
			}
		}
		if err := b.until(ctx, part, s.of); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// hello is an empty RELAY to a player from another one.
func (b *binder) hello(to *framePlayer, from int) ([]byte, *framePlayer) {
	sender := &b.players[from]
	if sender == to {
		return nil, nil
	}
	return proto.Relay{From: sender.id, To: to.id}.Append(nil), sender
}

type binder struct {
	conn     *ipv4.PacketConn
	relay    *net.UDPAddr
	players  []framePlayer
	joiners  int
	answered atomic.Int64
}

// read notes the answers, until the socket is closed.
func (b *binder) read() {
	msgs := make([]ipv4.Message, 64)
	for i := range msgs {
		msgs[i].Buffers = [][]byte{make([]byte, 2048)}
		msgs[i].OOB = ipv4.NewControlMessage(ipv4.FlagDst)
	}
	index := make(map[netip.Addr]int, len(b.players))
	for i := range b.players {
		index[b.players[i].addr] = i
	}
	var cm ipv4.ControlMessage
	for {
		n, err := b.conn.ReadBatch(msgs, 0)
		if err != nil {
			return
		}
		for _, m := range msgs[:n] {
			if cm.Parse(m.OOB[:m.NN]) != nil {
				continue
			}
			dst, _ := netip.AddrFromSlice(cm.Dst.To4())
			i, ok := index[dst]
			if !ok {
				continue
			}
			t, err := proto.ParseType(m.Buffers[0][:m.N])
			if err == nil && (t == proto.TypeBindReceived || t == proto.TypeAccepted || t == proto.TypeRelay) &&
				b.players[i].left.CompareAndSwap(1, 0) {
				b.answered.Add(1)
			}
		}
	}
}

const (
	inFlight     = 2000 // messages without an answer
	bindAttempts = 100
)

// until sends the message for each player that waits for an answer, again and again.
func (b *binder) until(ctx context.Context, part []framePlayer, of func(*framePlayer) ([]byte, *framePlayer)) error {
	out := make([]ipv4.Message, 0, 64)
	for range bindAttempts {
		waiting, sent, begin := 0, int64(0), b.answered.Load()
		flush := func() error {
			for rest := out; len(rest) > 0; {
				n, err := b.conn.WriteBatch(rest, 0)
				if err != nil {
					return err
				}
				rest = rest[n:]
			}
			sent += int64(len(out))
			out = out[:0]
			for wait := 0; wait < 100 && sent-(b.answered.Load()-begin) > inFlight; wait++ {
				time.Sleep(time.Millisecond)
			}
			return ctx.Err()
		}
		for i := range part {
			p := &part[i]
			if p.left.Load() == 0 {
				continue
			}
			waiting++
			msg, sender := of(p)
			out = append(out, ipv4.Message{
				Buffers: [][]byte{msg}, Addr: b.relay, OOB: (&ipv4.ControlMessage{Src: sender.addr.AsSlice()}).Marshal(),
			})
			if len(out) == cap(out) {
				if err := flush(); err != nil {
					return err
				}
			}
		}
		if waiting == 0 {
			return nil
		}
		if err := flush(); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	waiting := 0
	for i := range part {
		waiting += int(part[i].left.Load())
	}
	return fmt.Errorf("%d of %d players got no answer", waiting, len(part))
}
