package demo

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/ferryrelay/ferry/internal/server/process"
)

// relay is the process under test, in this process.
type relay struct {
	app    *process.App
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
}

// startRelay runs a relay on free ports of loopback and waits until it is
// ready. If it ends before stop is called, it calls fail with the error.
func startRelay(ctx context.Context, o Options, fail func(error)) (*relay, error) {
	identity, err := state.NewIdentity()
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	a, err := process.New(process.Options{
		Config: relayConfig(o.Players), Mode: process.Dev, Identity: identity, Logger: o.Logger,
		OnReady: func() { close(ready) },
	})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &relay{app: a, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		if err := a.Run(running); err != nil {
			fail(fmt.Errorf("%w: %w", ErrRelayStopped, err))
		} else {
			fail(ErrRelayStopped)
		}
	}()
	select {
	case <-ready:
		return r, nil
	case <-ctx.Done():
		r.stop()
		return nil, cause(ctx)
	}
}

func (r *relay) stop() {
	r.cancel()
	<-r.done
}

func relayConfig(players int) config.Config {
	c := config.Dev()
	free := config.Addr{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)}
	c.UDP, c.HTTP, c.Admin = []config.Addr{free}, free, free
	c.MaxConnections = max(c.MaxConnections, players)
	return c
}
