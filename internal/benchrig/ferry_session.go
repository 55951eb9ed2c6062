package benchrig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/client"
)

// sessionEvery is the time between the datagrams of a session, each way.
const sessionEvery = 50 * time.Millisecond

// ferrySession is one session of the shape churn: a host and one player of package
// client, each with a socket of its own. One goroutine owns it.
type ferrySession struct {
	f            *Ferry
	done         func(string, time.Duration)
	host, player *client.Session
	ended        chan error
	running      int
	tickets      [2]client.Ticket
	code         string
	peer         *client.Peer
}

// Session plays a host and a player: allocate, joincode, join, bind, connect,
// play, leave. It is safe for concurrent use.
func (f *Ferry) Session(ctx context.Context, play time.Duration, done func(step string, took time.Duration)) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &ferrySession{f: f, done: done, ended: make(chan error, 2)}
	defer s.wait()
	defer cancel()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"allocate", s.allocate}, {"joincode", s.joinCode}, {"join", s.join},
		{"bind", s.bind}, {"connect", s.connect},
		{"play", func(ctx context.Context) error { return s.play(ctx, play) }},
		{"leave", s.leave},
	} {
		begin := time.Now()
		if err := step.do(ctx); err != nil {
			return &StepError{step.name, err}
		}
		done(step.name, time.Since(begin))
	}
	return nil
}

func (s *ferrySession) allocate(ctx context.Context) error {
	r, err := s.f.reserve(ctx, 1)
	s.tickets[0] = r.ticket
	return err
}

func (s *ferrySession) joinCode(ctx context.Context) (err error) {
	s.code, err = s.f.api.JoinCode(ctx, s.tickets[0].ID.String())
	return err
}

func (s *ferrySession) join(ctx context.Context) error {
	r, err := s.f.redeem(ctx, s.code, s.tickets[0].ID)
	s.tickets[1] = r.ticket
	return err
}

// bind opens both sockets and binds both allocations.
func (s *ferrySession) bind(ctx context.Context) (err error) {
	if s.host, err = s.start(ctx, s.tickets[0]); err != nil {
		return err
	}
	if s.player, err = s.start(ctx, s.tickets[1]); err != nil {
		return err
	}
	return errors.Join(s.host.Bind(ctx), s.player.Bind(ctx))
}

func (s *ferrySession) start(ctx context.Context, t client.Ticket) (*client.Session, error) {
	if !s.f.cfg.AllowRemote && !t.Server.Addr().IsLoopback() {
		return nil, fmt.Errorf("%w: %v", ErrRemote, t.Server)
	}
	c, err := client.New(client.Config{Ticket: t, SocketBuffer: 64 << 10})
	if err != nil {
		return nil, err
	}
	s.running++
	go func() { s.ended <- c.Run(ctx) }()
	return c, nil
}

func (s *ferrySession) connect(ctx context.Context) (err error) {
	s.peer, err = s.player.Connect(ctx)
	return err
}

// play sends from the player to the host and back. It fails unless at least one
// datagram comes back.
func (s *ferrySession) play(ctx context.Context, lasts time.Duration) error {
	hostSide := s.host.PacketConn()
	defer context.AfterFunc(ctx, func() { _ = hostSide.SetDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 64)
	returned := false
	for begin := time.Now(); !returned || time.Since(begin) < lasts; {
		if time.Since(begin) > lasts+5*time.Second {
			return errors.New("no datagram came back")
		}
		round := time.Now().Add(sessionEvery)
		if _, err := s.peer.Write([]byte("ping of a session that comes and goes")); err != nil {
			return err
		}
		_ = hostSide.SetReadDeadline(round)
		if n, from, err := hostSide.ReadFrom(buf); err == nil {
			if _, err := hostSide.WriteTo(buf[:n], from); err != nil {
				return err
			}
			_ = s.peer.SetReadDeadline(round)
			if _, err := s.peer.Read(buf); err == nil {
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

// leave closes both sides, player first.
func (s *ferrySession) leave(context.Context) error {
	return errors.Join(s.player.Close(), s.host.Close())
}

// wait waits for both client sessions, whose context must have ended.
func (s *ferrySession) wait() {
	for range s.running {
		<-s.ended
	}
}
