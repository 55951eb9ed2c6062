package websocket

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	ws "github.com/coder/websocket"
)

// write writes what is queued, looks after the connection, and closes it when
// it ends. It is the only one to close it.
func (c *conn) write() {
	bind := time.NewTimer(c.t.cfg.BindTimeout)
	defer bind.Stop()
	beat := time.NewTicker(c.t.cfg.PingInterval)
	defer beat.Stop()
	for {
		select {
		case <-c.ending:
			c.close()
			return
		case <-c.wake:
			if err := c.drain(); err != nil {
				c.end(endOfWrite(err))
			}
		case <-bind.C:
			if !c.answered.Load() {
				c.end(EndUnbound)
			}
		case <-beat.C:
			c.beat()
		}
	}
}

// drain writes what is queued, in as few system calls as it fits into. There is
// no error when the reader has closed the connection or said goodbye, since the
// reader knows why.
func (c *conn) drain() error {
	c.sock.holdBack()
	var err error
	var sent, bytes uint64
	for err == nil {
		msg, ok := c.queue.pop(c.room[:])
		if !ok {
			break
		}
		if err = c.ws.Write(context.Background(), ws.MessageBinary, msg); err == nil {
			sent, bytes = sent+1, bytes+uint64(len(msg))
		} else {
			c.t.drop(DropGone)
		}
	}
	c.t.counts.sent.Add(sent)
	c.t.counts.sentBytes.Add(bytes)
	if released := c.sock.release(); err == nil {
		err = released
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// endOfWrite tells a slow reader from a broken connection.
func endOfWrite(err error) End {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return EndSlow
	}
	return EndLost
}

// close says goodbye if that makes sense, and closes the connection.
func (c *conn) close() {
	if e := ends[c.why.Load()]; e.status != 0 && c.drain() == nil {
		_ = c.ws.Close(e.status, e.reason) // It closes the connection whatever happens.
		return
	}
	c.sock.abort()
	_ = c.ws.CloseNow()
}

// beat is what is done every PingInterval.
func (c *conn) beat() {
	c.queue.trim()
	if limit := c.t.cfg.IdleTimeout; c.active.Swap(false) {
		c.idle = 0
	} else if c.idle += c.t.cfg.PingInterval; limit > 0 && c.idle >= limit {
		c.end(EndIdle)
		return
	}
	if !c.heard.Swap(false) && c.pinging.CompareAndSwap(false, true) {
		c.pings.Go(c.ping)
	}
}

// ping waits for a pong, and ends the connection if none comes.
func (c *conn) ping() {
	defer c.pinging.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), c.t.cfg.PongTimeout)
	defer cancel()
	c.t.counts.pings.Add(1)
	if err := c.ws.Ping(ctx); err != nil && ctx.Err() != nil {
		c.end(EndPing)
	}
}
