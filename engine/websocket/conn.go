package websocket

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	ws "github.com/coder/websocket"
)

const (
	// maxUnbound is how many messages a connection may send before the relay sends
	// it BIND_RECEIVED. A client repeats its BIND once a second, for ten seconds.
	maxUnbound = 64
	// maxOverhead is how many bytes a connection may send that are no message: before
	// BIND_RECEIVED, and then in each PingInterval. Frames without content cost the
	// relay as much time as messages do. A fragment has at least six besides its content.
	maxOverhead = 16 << 10
	// controlOverhead is what a ping or a pong counts besides its bytes, since it costs
	// more time, and the answer to a ping is a write.
	controlOverhead = 200
	// busyPause is how long a connection is not read after the relay was busy.
	busyPause = time.Millisecond
)

// conn is one WebSocket connection. The goroutine that calls run is its reader, and that of
// write its writer. Any goroutine may call send and end.
type conn struct {
	t      *Transport
	serial uint64
	ws     *ws.Conn
	sock   *socket
	place  *place
	queue  queue

	wake   chan struct{} // signals that the queue is no longer empty
	ending chan struct{} // closed when reason is set
	reason atomic.Uint32 // an End

	received atomic.Bool // a message, since the last call of checkLiveness
	sent     atomic.Bool // anything but ERROR, since the last call of checkLiveness
	bound    atomic.Bool // BIND_RECEIVED was sent

	unbound int // messages received before bound was set; owned by the reader

	msg     [maxMessage]byte // the message being written
	idleFor time.Duration    // how long nothing was sent, in steps of PingInterval
	pings   sync.WaitGroup
	pinging atomic.Bool
}

func newConn(t *Transport, serial uint64, w *ws.Conn, s *socket, p *place) *conn {
	return &conn{
		t: t, serial: serial, ws: w, sock: s, place: p,
		wake: make(chan struct{}, 1), ending: make(chan struct{}),
		queue: queue{maxMessages: t.cfg.queueMessages, maxBytes: t.cfg.queueBytes, stuckAfter: t.cfg.writeTimeout},
	}
}

func (c *conn) run() {
	var writer sync.WaitGroup
	writer.Go(c.write)
	defer func() {
		c.end(endLost) // Only if the reader panicked.
		c.t.remove(c)
		if l := c.t.linked.to.Load(); l != nil {
			l.wait(c.serial, nil)
		}
		writer.Wait()
		c.pings.Wait()
		c.t.counts.dropped[dropGone].Add(uint64(c.queue.len()))
		c.t.counts.ended[c.reason.Load()].Add(1)
	}()
	c.t.add(c)
	c.end(c.read())
}

// end makes the writer close the connection, for the reason of the first call. It does not block.
func (c *conn) end(reason end) {
	if !c.reason.CompareAndSwap(uint32(endNone), uint32(reason)) {
		return
	}
	c.queue.close()
	deadline := time.Now()
	if ends[reason].status != 0 {
		deadline = deadline.Add(c.t.cfg.closeTimeout)
	}
	c.sock.setFinalDeadline(deadline)
	close(c.ending)
}

func (c *conn) isEnding() bool { return c.reason.Load() != uint32(endNone) }

// noteBound records that the client holds the key of an allocation. Any other message than
// BIND_RECEIVED, such as the answer to a QoS probe, proves nothing.
func (c *conn) noteBound() {
	if c.bound.CompareAndSwap(false, true) {
		c.t.admission.noteBound(c.place)
	}
}

func (c *conn) send(pkt []byte) bool {
	if !c.sent.Load() {
		c.sent.Store(true)
	}
	return c.sendError(pkt)
}

// sendError queues an ERROR, which does not keep an idle connection open.
func (c *conn) sendError(pkt []byte) bool {
	switch c.queue.push(pkt) {
	case pushFirst:
		select {
		case c.wake <- struct{}{}:
		default:
		}
	case pushStuck:
		c.end(endSlow)
		return c.t.drop(dropFull)
	case pushFull:
		return c.t.drop(dropFull)
	case pushClosed:
		return c.t.drop(dropGone)
	}
	return true
}

func (c *conn) sendFinal(pkt []byte) bool {
	if !c.queue.pushFinal(pkt) {
		return c.t.drop(dropGone)
	}
	c.end(endFinalError)
	return true
}

func (c *conn) read() end {
	// The library reports a message as too large only when the buffer has room
	// for more than the limit.
	buf := make([]byte, maxMessage+1)
	for {
		n, err := c.receive(buf)
		if err != nil {
			return endOfRead(err)
		}
		switch {
		case c.bound.Load():
			c.sock.overhead.Add(int64(frameSize(n)))
		case c.unbound < maxUnbound:
			c.unbound++
		default:
			return endFlood
		}
		if n == 0 {
			c.t.drop(dropEmpty)
			continue
		}
		if !c.received.Load() {
			c.received.Store(true)
		}
		if !c.isEnding() {
			c.deliver(buf[:n])
		}
	}
}

// frameSize is that of a message of n bytes in one frame. An empty one is all overhead.
func frameSize(n int) int {
	switch {
	case n == 0:
		return 0
	case n < 126:
		return 2 + 4 + n
	}
	return 4 + 4 + n
}

var errText = errors.New("websocket: text message")

func (c *conn) receive(buf []byte) (n int, err error) {
	kind, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return 0, err
	}
	if kind != ws.MessageBinary {
		return 0, errText
	}
	for {
		m, err := r.Read(buf[n:])
		n += m
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// deliver pauses reading while the relay is busy, so that TCP slows the sender down.
func (c *conn) deliver(pkt []byte) {
	if l := c.t.linked.to.Load(); l != nil {
		if !l.wait(c.serial, pkt) {
			c.t.drop(dropGone)
		}
		return
	}
	if !c.place.in.Deliver(c.serial, pkt) {
		c.t.drop(dropBusy)
		time.Sleep(busyPause)
		return
	}
	c.t.counts.received.Add(1)
	c.t.counts.receivedBytes.Add(uint64(len(pkt)))
}

// endOfRead tells a fault of the client from one of the network.
func endOfRead(err error) end {
	var netErr net.Error
	switch {
	case ws.CloseStatus(err) != -1:
		return endPeer
	case errors.Is(err, errText):
		return endText
	case errors.Is(err, errFlood):
		return endFlood
	case errors.Is(err, ws.ErrMessageTooBig):
		return endLarge
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.As(err, &netErr):
		return endLost
	}
	return endProtocol
}

// write is the only goroutine that closes the connection.
func (c *conn) write() {
	bindTimer := time.NewTimer(c.t.cfg.bindTimeout)
	defer bindTimer.Stop()
	ticker := time.NewTicker(c.t.cfg.PingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-c.ending:
			c.close()
			return
		case <-c.wake:
			if err := c.drain(); err != nil {
				c.end(endOfWrite(err))
			}
		case <-bindTimer.C:
			if !c.bound.Load() {
				c.end(endUnbound)
			}
		case <-ticker.C:
			c.checkLiveness()
		}
	}
}

// drain returns nil if the connection is closed already: the reader then reports the reason.
func (c *conn) drain() error {
	c.sock.cork()
	var err error
	var sent, bytes uint64
	for err == nil {
		msg, ok := c.queue.pop(c.msg[:])
		if !ok {
			break
		}
		if err = c.ws.Write(context.Background(), ws.MessageBinary, msg); err == nil {
			sent, bytes = sent+1, bytes+uint64(len(msg))
		} else {
			c.t.drop(dropGone)
		}
	}
	c.t.counts.sent.Add(sent)
	c.t.counts.sentBytes.Add(bytes)
	if flushErr := c.sock.uncork(); err == nil {
		err = flushErr
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// endOfWrite tells a slow client from a broken connection.
func endOfWrite(err error) end {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return endSlow
	}
	return endLost
}

func (c *conn) close() {
	if e := ends[c.reason.Load()]; e.status != 0 && c.drain() == nil {
		_ = c.ws.Close(e.status, e.reason) // It closes the connection even if it fails.
		return
	}
	c.sock.abort()
	_ = c.ws.CloseNow()
}

// checkLiveness runs every PingInterval.
func (c *conn) checkLiveness() {
	c.queue.trim()
	bound := c.bound.Load()
	if bound {
		c.sock.overhead.Store(maxOverhead)
	}
	if limit := c.t.cfg.IdleTimeout; c.sent.Swap(false) {
		c.idleFor = 0
	} else if c.idleFor += c.t.cfg.PingInterval; c.idleFor >= limit {
		c.end(endIdle)
		return
	}
	if !c.received.Swap(false) && bound && c.pinging.CompareAndSwap(false, true) {
		c.pings.Go(c.ping)
	}
}

// ping waits for the pong, a sign of life that the timers of a page in the background do not give.
func (c *conn) ping() {
	defer c.pinging.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), c.t.cfg.pongTimeout)
	defer cancel()
	c.t.counts.pings.Add(1)
	switch err := c.ws.Ping(ctx); {
	case err == nil:
		c.deliverAlive()
	case ctx.Err() != nil:
		c.end(endPing)
	}
}

// deliverAlive passes a sign of life to the relay, see [engine.Intake], which answers with
// an empty message if the connection still has an allocation.
func (c *conn) deliverAlive() {
	if l := c.t.linked.to.Load(); l != nil {
		l.wait(c.serial, aliveOverLink[:])
		return
	}
	c.place.in.Deliver(c.serial, nil)
}
