package websocket

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/engine"
)

const (
	// unprovenMessages is how many messages of a connection are delivered before
	// the relay has sent it anything but ERROR. A client repeats its BIND once a
	// second, for the ten seconds of BindTimeout.
	unprovenMessages = 64
	// busyRest is for how long a connection is not read after the relay had no
	// room for its message.
	busyRest = time.Millisecond
)

// conn is one WebSocket. Its reader is the goroutine of run, its writer the one
// of write; any goroutine may send to it and end it.
type conn struct {
	t      *Transport
	serial uint64
	ws     *ws.Conn
	sock   *socket
	in     engine.Intake
	queue  queue

	wake   chan struct{} // the queue is not empty any more
	ending chan struct{} // closed when why is set
	why    atomic.Uint32 // an End

	heard    atomic.Bool // something came since the last beat
	active   atomic.Bool // something was sent since the last beat
	answered atomic.Bool // something other than ERROR was ever sent

	unproven int // messages before that; the reader's

	// The writer's.
	room    [MaxMessage]byte
	idle    time.Duration // how long nothing was sent, in beats
	pings   sync.WaitGroup
	pinging atomic.Bool
}

func newConn(t *Transport, serial uint64, w *ws.Conn, s *socket, in engine.Intake) *conn {
	return &conn{
		t: t, serial: serial, ws: w, sock: s, in: in,
		wake: make(chan struct{}, 1), ending: make(chan struct{}),
		queue: queue{maxMessages: t.cfg.QueueMessages, maxBytes: t.cfg.QueueBytes, patience: t.cfg.WriteTimeout},
	}
}

// run serves the connection until it ends, and leaves nothing of it.
func (c *conn) run() {
	var writer sync.WaitGroup
	writer.Go(c.write)
	defer func() {
		c.end(EndLost) // Only if the reader panicked.
		c.t.remove(c)
		writer.Wait()
		c.pings.Wait()
		c.t.counts.dropped[DropGone].Add(uint64(c.queue.left()))
		c.t.counts.ended[c.why.Load()].Add(1)
	}()
	c.t.add(c)
	c.end(c.read())
}

// end makes the writer end the connection, for the first reason that is given.
// It does not block.
func (c *conn) end(why End) {
	if !c.why.CompareAndSwap(uint32(endNone), uint32(why)) {
		return
	}
	c.queue.close()
	until := time.Now()
	if ends[why].status != 0 {
		until = until.Add(c.t.cfg.CloseTimeout)
	}
	c.sock.finish(until)
	close(c.ending)
}

func (c *conn) ended() bool { return c.why.Load() != uint32(endNone) }

// send queues a message other than ERROR.
func (c *conn) send(pkt []byte) bool {
	if !c.answered.Load() {
		c.answered.Store(true)
	}
	if !c.active.Load() {
		c.active.Store(true)
	}
	return c.sendError(pkt)
}

// sendError queues a message.
func (c *conn) sendError(pkt []byte) bool {
	switch c.queue.push(pkt) {
	case pushFirst:
		select {
		case c.wake <- struct{}{}:
		default:
		}
	case pushStuck:
		c.end(EndSlow)
		return c.t.drop(DropFull)
	case pushFull:
		return c.t.drop(DropFull)
	case pushClosed:
		return c.t.drop(DropGone)
	}
	return true
}

// sendLast queues the last message.
func (c *conn) sendLast(pkt []byte) bool {
	if !c.queue.pushLast(pkt) {
		return c.t.drop(DropGone)
	}
	c.end(EndLast)
	return true
}

// read delivers what comes until the connection ends, and returns why.
func (c *conn) read() End {
	// One byte more than fits makes the library notice what is too large.
	buf := make([]byte, MaxMessage+1)
	for {
		n, err := c.receive(buf)
		if err != nil {
			return endOf(err)
		}
		if !c.heard.Load() {
			c.heard.Store(true)
		}
		if !c.ended() {
			c.deliver(buf[:n])
		}
	}
}

// errText means that a text message came.
var errText = errors.New("websocket: text message")

// receive reads one message.
func (c *conn) receive(buf []byte) (n int, err error) {
	kind, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return 0, err
	}
	if kind != ws.MessageBinary {
		return 0, errText
	}
	for {
		got, err := r.Read(buf[n:])
		n += got
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// deliver hands a message to the relay.
func (c *conn) deliver(pkt []byte) {
	if !c.answered.Load() {
		if c.unproven++; c.unproven > unprovenMessages {
			c.t.drop(DropUnproven)
			return
		}
	}
	if !c.in.Deliver(c.serial, pkt) {
		c.t.drop(DropBusy)
		time.Sleep(busyRest)
		return
	}
	c.t.counts.received.Add(1)
	c.t.counts.receivedBytes.Add(uint64(len(pkt)))
}

// endOf tells the faults of a client from those of the network.
func endOf(err error) End {
	var network net.Error
	switch {
	case ws.CloseStatus(err) != -1:
		return EndPeer
	case errors.Is(err, errText):
		return EndText
	case errors.Is(err, ws.ErrMessageTooBig):
		return EndLarge
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.As(err, &network):
		return EndLost
	}
	return EndProtocol
}
