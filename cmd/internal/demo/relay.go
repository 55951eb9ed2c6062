package demo

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/relay"
)

// server is the relay of a demo, in this process.
type server struct {
	relay  *relay.Relay
	api    string // its URL
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
}

// startServer runs a relay on free ports of loopback and waits until it is
// ready. If it ends before stop is called, it calls fail with the error.
func startServer(ctx context.Context, o Options, fail func(error)) (*server, error) {
	loopback := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	listener, err := net.Listen("tcp", loopback.String())
	if err != nil {
		return nil, err
	}
	inner, err := relay.New(relay.Config{
		Listener: listener,
		API:      httpapi.Config{Anonymous: true},
		Engine: engine.Config{
			Listen: []netip.AddrPort{loopback}, Unlimited: true, Logger: o.Logger,
			MaxConnections: max(alloc.DefaultMaxConnections, o.Players),
		},
	})
	if err != nil {
		listener.Close()
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &server{relay: inner, api: "http://" + listener.Addr().String(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		if err := inner.Run(running); err != nil {
			fail(fmt.Errorf("%w: %w", ErrRelayStopped, err))
		} else {
			fail(ErrRelayStopped)
		}
	}()
	select {
	case <-inner.Ready():
		return s, nil
	case <-ctx.Done():
		s.stop()
		return nil, cause(ctx)
	}
}

func (s *server) stop() {
	s.cancel()
	<-s.done
}
