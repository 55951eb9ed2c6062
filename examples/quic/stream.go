package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/ferryrelay/ferry/client"
)

// start runs a session until the function that it returns is called. The session outlives ctx, so that
// QUIC can close its connections.
func start(ctx context.Context, ticket client.Ticket) (*client.Session, func(), error) {
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		return nil, nil, err
	}
	var running sync.WaitGroup
	running.Go(func() { _ = session.Run(context.WithoutCancel(ctx)) })
	return session, func() {
		_ = session.Close()
		running.Wait()
	}, nil
}

// streamConn is a stream of QUIC as a net.Conn.
type streamConn struct {
	*quic.Stream
	conn *quic.Conn
}

// LocalAddr implements [net.Conn].
func (c streamConn) LocalAddr() net.Addr { return c.conn.LocalAddr() }

// RemoteAddr implements [net.Conn]. It is the allocation of the peer.
func (c streamConn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// Close ends both directions of the stream: the one of QUIC alone ends that of sending.
func (c streamConn) Close() error {
	c.CancelRead(0)
	return c.Stream.Close()
}

// streamListener accepts the streams of all connections of a QUIC listener.
type streamListener struct {
	listener *quic.Listener
	streams  chan net.Conn
	closed   <-chan struct{}
	cancel   context.CancelFunc // closes closed, and ends run
}

// Accept implements [net.Listener].
func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.streams:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements [net.Listener].
func (l *streamListener) Addr() net.Addr { return l.listener.Addr() }

// Close implements [net.Listener].
func (l *streamListener) Close() error {
	l.cancel()
	return l.listener.Close()
}

// run accepts connections and streams until ctx ends.
func (l *streamListener) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		conn, err := l.listener.Accept(ctx)
		if err != nil {
			return
		}
		running.Go(func() {
			defer conn.CloseWithError(0, "")
			for {
				stream, err := conn.AcceptStream(ctx)
				if err != nil {
					return
				}
				select {
				case l.streams <- streamConn{stream, conn}:
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

// serveHTTP serves HTTP/1.1 on each stream of a listener until ctx ends, and closes the listener.
func serveHTTP(ctx context.Context, listener *quic.Listener, handler http.Handler) error {
	accepting, cancel := context.WithCancel(ctx)
	l := &streamListener{listener, make(chan net.Conn), accepting.Done(), cancel}
	var running sync.WaitGroup
	running.Go(func() { l.run(accepting) })
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	err := server.Serve(l)
	if ctx.Err() != nil {
		err = nil
	}
	err = errors.Join(err, server.Close())
	running.Wait()
	return err
}

// httpClient returns a client whose connections are streams.
func httpClient(conn *quic.Conn) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			stream, err := conn.OpenStreamSync(ctx)
			if err != nil {
				return nil, err
			}
			return streamConn{stream, conn}, nil
		},
	}}
}
