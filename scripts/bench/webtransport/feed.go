package main

import (
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

const (
	// feedSlots is how many packets may wait for quic-go. Beyond that the newest is dropped, and
	// counted.
	feedSlots = 8192
	// feedSize is the size in bytes of the largest packet: quic-go takes no more.
	feedSize = 1452
	// feedAddrs bounds the addresses that are remembered.
	feedAddrs = 1 << 16
)

// feed is the connection of a quic.Transport, to which a worker of the relay passes the packets
// that it receives in batches. It has neither SyscallConn nor ReadMsgUDP: quic-go would change
// the socket's path MTU mode, and read it.
type feed struct {
	group *sock.Group
	conn  *sock.Conn
	wake  chan struct{}
	done  chan struct{}
	close sync.Once
	send  sync.Pool     // of *sock.SendBatch for one packet
	delay time.Duration // see newFeed
	out   sender        // with delay

	mu         sync.Mutex // guards head and tail; the reader reads the slots without it
	head, tail uint64
	slots      []feedSlot

	full  atomic.Uint64                      // packets that were dropped since quic-go did not read
	addrs map[endpoint.Endpoint]*net.UDPAddr // owned by the reader
}

type feedSlot struct {
	from endpoint.Endpoint
	n    int
	room [feedSize]byte
}

// newFeed opens the socket. With a delay packets are received and sent in batches: those that
// arrive, or that quic-go sends, within the delay after the first one.
func newFeed(addr netip.AddrPort, delay time.Duration) (*feed, error) {
	g, err := sock.Listen(sock.Config{Addr: addr, HoldProcessor: runtime.GOMAXPROCS(0) > 1}, 1)
	if err != nil {
		return nil, err
	}
	f := &feed{
		group: g, conn: g.Conns()[0], wake: make(chan struct{}, 1), done: make(chan struct{}),
		slots: make([]feedSlot, feedSlots), addrs: make(map[endpoint.Endpoint]*net.UDPAddr), delay: delay,
	}
	f.out.wake = make(chan struct{}, 1)
	for i := range f.slots {
		f.slots[i].room[0] = 1 // Its memory is no session's.
	}
	f.send.New = func() any { return f.conn.NewSendBatch(1) }
	return f, nil
}

// run is the part of a worker: it passes each batch to the reader with one wake-up.
func (f *feed) run() {
	runtime.LockOSThread()
	batch := f.conn.NewRecvBatch()
	for {
		n, err := f.conn.Recv(batch)
		if err != nil {
			return
		}
		if n == 0 {
			continue
		}
		f.push(batch, n)
		if f.delay > 0 {
			f.conn.Sleep(f.delay)
			if n, err = f.conn.TryRecv(batch); err != nil {
				return
			}
			f.push(batch, n)
		}
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

func (f *feed) push(batch *sock.RecvBatch, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range n {
		from, pkt, truncated := batch.At(i)
		if truncated || len(pkt) > feedSize || from.IsZero() {
			continue
		}
		if f.tail-f.head == feedSlots {
			f.full.Add(1)
			continue
		}
		s := &f.slots[f.tail%feedSlots]
		s.from, s.n = from, copy(s.room[:], pkt)
		f.tail++
	}
}

// ReadFrom implements [net.PacketConn].
func (f *feed) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		f.mu.Lock()
		empty, at := f.head == f.tail, f.head
		f.mu.Unlock()
		if empty {
			select {
			case <-f.wake:
				continue
			case <-f.done:
				return 0, nil, net.ErrClosed
			}
		}
		s := &f.slots[at%feedSlots]
		n, from := copy(p, s.room[:s.n]), f.addr(s.from)
		f.mu.Lock()
		f.head++
		f.mu.Unlock()
		return n, from, nil
	}
}

func (f *feed) addr(from endpoint.Endpoint) *net.UDPAddr {
	a := f.addrs[from]
	if a == nil {
		if len(f.addrs) == feedAddrs {
			clear(f.addrs)
		}
		a = net.UDPAddrFromAddrPort(from.AddrPort())
		f.addrs[from] = a
	}
	return a
}

// WriteTo implements [net.PacketConn].
func (f *feed) WriteTo(p []byte, to net.Addr) (int, error) {
	if f.delay > 0 {
		return f.out.add(p, to)
	}
	b := f.send.Get().(*sock.SendBatch)
	defer f.send.Put(b)
	b.Add(endpoint.UDP(to.(*net.UDPAddr).AddrPort(), 0, 0), p)
	f.conn.Send(b) // A refused packet is one that the network loses: at an error quic-go ends the connection.
	return len(p), nil
}

// Close implements [net.PacketConn].
func (f *feed) Close() error {
	f.close.Do(func() { close(f.done) })
	return f.group.Close()
}

// LocalAddr implements [net.PacketConn].
func (f *feed) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(f.group.Addr()) }

// SetReadBuffer and SetWriteBuffer leave the sizes of package sock: quic-go asks for its own.
func (f *feed) SetReadBuffer(int) error  { return nil }
func (f *feed) SetWriteBuffer(int) error { return nil }

// SetDeadline and the like implement [net.PacketConn]. quic-go calls SetReadDeadline when it closes.
func (f *feed) SetDeadline(time.Time) error      { return nil }
func (f *feed) SetWriteDeadline(time.Time) error { return nil }
func (f *feed) SetReadDeadline(time.Time) error {
	f.close.Do(func() { close(f.done) })
	return nil
}

// sender sends packets in batches.
type sender struct {
	wake chan struct{}

	mu      sync.Mutex // guards what follows
	pending []feedSlot
}

func (s *sender) add(p []byte, to net.Addr) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == cap(s.pending) && len(s.pending) >= feedSlots {
		return len(p), nil // as a full buffer of a network card
	}
	s.pending = append(s.pending, feedSlot{from: endpoint.UDP(to.(*net.UDPAddr).AddrPort(), 0, 0)})
	d := &s.pending[len(s.pending)-1]
	d.n = copy(d.room[:], p)
	if len(s.pending) == 1 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return len(p), nil
}

func (f *feed) runSender() {
	batch := f.conn.NewSendBatch(sock.MaxSendBatch)
	var spare []feedSlot
	for {
		select {
		case <-f.out.wake:
		case <-f.done:
			return
		}
		time.Sleep(f.delay)
		f.out.mu.Lock()
		full := f.out.pending
		f.out.pending = spare[:0]
		f.out.mu.Unlock()
		for i := range full {
			if !batch.Add(full[i].from, full[i].room[:full[i].n]) {
				f.conn.Send(batch)
				batch.Add(full[i].from, full[i].room[:full[i].n])
			}
		}
		f.conn.Send(batch)
		spare = full
	}
}
