package benchrig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/client"
)

// sessionEvery is the time between the datagrams of a session, each way.
const sessionEvery = 50 * time.Millisecond

// Session plays a host and a player of package client, each with a socket of its own: allocate,
// joincode, join, bind, connect, play, leave. It is safe for concurrent use.
func (f *Ferry) Session(ctx context.Context, play time.Duration, done func(step string, took time.Duration)) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := func(t client.Ticket) (*client.Session, error) {
		if !f.cfg.AllowRemote && !t.Server.Addr().IsLoopback() {
			return nil, fmt.Errorf("%w: %v", ErrRemote, t.Server)
		}
		c, err := client.New(client.Config{Ticket: t, SocketBuffer: 64 << 10})
		if err == nil {
			running.Go(func() { _ = c.Run(ctx) })
		}
		return c, err
	}
	var reserved [2]reservation // of the host and the player
	var host, player *client.Session
	var code string
	var peer *client.Peer
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"allocate", func() (err error) {
			reserved[0], err = f.reserve(ctx, 1)
			return err
		}},
		{"joincode", func() (err error) {
			code, err = f.api.JoinCode(ctx, reserved[0].ticket.ID.String())
			return err
		}},
		{"join", func() (err error) {
			reserved[1], err = f.redeem(ctx, code, reserved[0].ticket.ID)
			return err
		}},
		{"bind", func() (err error) {
			if host, err = start(reserved[0].ticket); err != nil {
				return err
			}
			if player, err = start(reserved[1].ticket); err != nil {
				return err
			}
			return errors.Join(host.Bind(ctx), player.Bind(ctx))
		}},
		{"connect", func() (err error) {
			peer, err = player.Connect(ctx)
			return err
		}},
		{"play", func() error { return exchange(ctx, peer, host.PacketConn(), play) }},
		{"leave", func() error { return errors.Join(player.Close(), host.Close()) }},
	} {
		begin := time.Now()
		if err := step.do(); err != nil {
			return &StepError{step.name, err}
		}
		done(step.name, time.Since(begin))
	}
	return nil
}

// exchange fails unless at least one datagram comes back.
func exchange(ctx context.Context, player net.Conn, host net.PacketConn, lasts time.Duration) error {
	defer context.AfterFunc(ctx, func() { _ = host.SetDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 64)
	returned := false
	for begin := time.Now(); !returned || time.Since(begin) < lasts; {
		if time.Since(begin) > lasts+5*time.Second {
			return errors.New("no datagram came back")
		}
		round := time.Now().Add(sessionEvery)
		if _, err := player.Write([]byte("ping of a session that comes and goes")); err != nil {
			return err
		}
		_ = host.SetReadDeadline(round)
		if n, from, err := host.ReadFrom(buf); err == nil {
			if _, err := host.WriteTo(buf[:n], from); err != nil {
				return err
			}
			_ = player.SetReadDeadline(round)
			if _, err := player.Read(buf); err == nil {
				returned = true
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(round)):
		}
	}
	return nil
}
