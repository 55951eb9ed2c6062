package main

import (
	"bufio"
	"context"
	"errors"
	"log"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine"
)

const (
	// queueLength is how many messages to a player wait before the newest is dropped.
	queueLength = 256
	// idleTimeout ends a connection that sends nothing; a client sends a PING every second.
	idleTimeout = 30 * time.Second
	// writeTimeout ends a connection that does not read.
	writeTimeout = 5 * time.Second
	// acceptDelay is the pause after an error of Accept, such as too many open files.
	acceptDelay = 100 * time.Millisecond
)

// transport carries messages of the relay protocol in frames over TCP. Each connection is a session.
type transport struct {
	listener net.Listener
	serial   atomic.Uint64 // of the newest session

	mu       sync.Mutex // guards what follows
	sessions map[uint64]chan<- []byte
}

var _ engine.Transport = (*transport)(nil)

// newTransport returns a transport that accepts connections while Run runs. It owns the listener from
// then on.
func newTransport(listener net.Listener) *transport {
	return &transport{listener: listener, sessions: make(map[uint64]chan<- []byte)}
}

// Name returns what the transport is called in listings, logs and statistics.
func (t *transport) Name() string { return "tcp" }

// MaxMessage returns the size of the largest message: a stream has no limit of its own.
func (t *transport) MaxMessage() int { return maxMessage }

// IsOpen implements [engine.Transport].
func (t *transport) IsOpen(serial uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[serial] != nil
}

// Send implements [engine.Transport].
func (t *transport) Send(serial uint64, msg []byte) bool {
	t.mu.Lock()
	queue := t.sessions[serial]
	t.mu.Unlock()
	select {
	case queue <- frame(msg): // never, if queue is nil
		return true
	default:
		return false
	}
}

// Run implements [engine.Transport].
func (t *transport) Run(ctx context.Context, in engine.Intake) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer context.AfterFunc(ctx, func() { _ = t.listener.Close() })()
	for {
		conn, err := t.listener.Accept()
		switch {
		case err == nil:
			running.Go(func() { t.serve(ctx, in, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			log.Print(err)
			select {
			case <-time.After(acceptDelay):
			case <-ctx.Done():
			}
		}
	}
}

// serve carries the messages of one session until its connection or ctx ends.
func (t *transport) serve(ctx context.Context, in engine.Intake, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	serial := t.serial.Add(1)
	queue := make(chan []byte, queueLength)
	t.mu.Lock()
	t.sessions[serial] = queue
	t.mu.Unlock()
	var writing sync.WaitGroup
	writing.Go(func() {
		defer cancel()
		write(ctx, conn, queue)
	})
	receive(conn, func(msg []byte) { in.Deliver(serial, msg) }) // What the relay has no room for is lost.
	t.mu.Lock()
	delete(t.sessions, serial)
	t.mu.Unlock()
	cancel()
	writing.Wait()
}

// receive reads messages until an error.
func receive(conn net.Conn, each func(msg []byte)) {
	r := bufio.NewReader(conn)
	buf := make([]byte, maxMessage)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(idleTimeout))
		msg, err := readFrame(r, buf)
		if err != nil {
			return
		}
		each(msg)
	}
}

// write writes frames until ctx ends or an error.
func write(ctx context.Context, conn net.Conn, queue <-chan []byte) {
	for {
		select {
		case frame := <-queue:
			_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := conn.Write(frame); err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
