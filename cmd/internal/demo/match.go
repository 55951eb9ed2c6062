package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// match is one host and its players. The goroutine of Run owns it; those of the
// players have their player and read what is fixed.
type match struct {
	api     *api.Client
	fail    func(error)
	count   uint32 // datagrams that each side sends
	options Options
	started time.Time // the clock of the datagrams

	code    string
	host    *client.Session
	players []*player

	all     sync.WaitGroup // every goroutine of the match
	sending atomic.Int64   // sides that still have datagrams to send
	leaving sync.Once
	left    chan struct{} // closed when sessions begin to be closed
}

func newMatch(url string, o Options, fail func(error)) *match {
	return &match{
		api: &api.Client{BaseURL: url}, fail: fail, options: o, started: time.Now(),
		count: max(1, uint32(o.Duration.Seconds()*rate)), left: make(chan struct{}),
	}
}

// now is the demo's clock in nanoseconds.
func (m *match) now() int64 { return int64(time.Since(m.started)) }

func (m *match) gather(ctx context.Context) error {
	within, cancel := context.WithTimeoutCause(ctx, gatherWithin,
		fmt.Errorf("demo: not all were connected within %v", gatherWithin))
	defer cancel()
	err := m.openHost(within)
	for number := 1; err == nil && number <= m.options.Players; number++ {
		if err = m.join(within, number); err != nil {
			err = fmt.Errorf("demo: player %d: %w", number, err)
		}
	}
	if err != nil && within.Err() != nil {
		return cause(within)
	}
	return err
}

func (m *match) openHost(ctx context.Context) error {
	ticket, err := client.Reserve(ctx, m.api, m.options.Players, "")
	if err != nil {
		return fmt.Errorf("demo: allocate: %w", err)
	}
	if m.code, err = m.api.JoinCode(ctx, ticket.ID.String()); err != nil {
		return fmt.Errorf("demo: join code: %w", err)
	}
	if m.host, err = m.open("host", ticket); err != nil {
		return err
	}
	if err := m.host.Bind(ctx); err != nil {
		return fmt.Errorf("demo: bind host: %w", err)
	}
	return nil
}

func (m *match) join(ctx context.Context, number int) error {
	ticket, err := client.Redeem(ctx, m.api, m.code)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	p := newPlayer(m, number)
	if p.session, err = m.open(fmt.Sprintf("player %d", number), ticket); err != nil {
		return err
	}
	m.players = append(m.players, p)
	if p.host, err = p.session.Connect(ctx); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// open makes a session and runs it until leave.
func (m *match) open(name string, t client.Ticket) (*client.Session, error) {
	s, err := client.New(client.Config{Ticket: t})
	if err != nil {
		return nil, err
	}
	m.all.Go(func() {
		err := s.Run(context.Background())
		select {
		case <-m.left: // It was closed.
		default:
			m.fail(fmt.Errorf("demo: %s: the session ended: %w", name, cmp.Or(err, net.ErrClosed)))
		}
	})
	return s, nil
}

// errSlow ends a match in which a player's datagrams never came to its host, or
// the machine could not keep up.
var errSlow = errors.New("demo: not everything could be sent in time")

// exchange lets both sides send what they have to send and waits until it has
// arrived, or drainWithin is over: what is missing then is for the verdict.
func (m *match) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*m.options.Duration+gatherWithin, errSlow)
	defer cancel()
	m.sending.Store(2 * int64(len(m.players))) // player and host, for each player
	for _, p := range m.players {
		m.all.Go(func() { p.receive() })
		m.all.Go(func() { m.send(ctx, p.host, fromPlayer, &p.toHost) })
	}
	m.all.Go(func() { m.accept(ctx) })
	var drained time.Time
	for drained.IsZero() || !m.settled() && time.Now().Before(drained) {
		select {
		case <-ctx.Done():
			return cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
		if drained.IsZero() && m.sending.Load() == 0 {
			drained = time.Now().Add(drainWithin)
		}
	}
	return nil
}

// accept learns of the players from what they send first, and serves them.
func (m *match) accept(ctx context.Context) {
	waiting := make(map[proto.AllocationID]*player)
	for _, p := range m.players {
		waiting[p.session.ID()] = p
	}
	for len(waiting) > 0 {
		peer, err := m.host.Accept(ctx)
		if err != nil {
			m.fail(fmt.Errorf("demo: host: accept: %w", err))
			return
		}
		p := waiting[peer.ID()]
		if p == nil {
			m.fail(fmt.Errorf("demo: host: unexpected peer: %v", peer.ID()))
			return
		}
		delete(waiting, peer.ID()) // Each is accepted once.
		m.all.Go(func() { p.serve(peer) })
		m.all.Go(func() { m.send(ctx, peer, fromHost, &p.fromHost) })
	}
}

func (m *match) send(ctx context.Context, to net.Conn, k kind, t *tally) {
	begin := time.Now()
	var b [size]byte
	for number := range m.count {
		due := begin.Add(time.Duration(number) * time.Second / rate)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
		datagram{k, number, m.now()}.put(&b)
		t.sent.Add(1)
		if _, err := to.Write(b[:]); err != nil {
			m.fail(fmt.Errorf("demo: send: %w", err))
			return
		}
	}
	m.sending.Add(-1)
}

// settled reports whether everything has arrived. The host returns a datagram
// before it counts it, so that no echo can be overlooked.
func (m *match) settled() bool {
	for _, p := range m.players {
		if !p.toHost.settled() || !p.fromHost.settled() {
			return false
		}
	}
	return true
}

// leave closes all sessions and waits until nothing of the match runs.
func (m *match) leave() {
	m.leaving.Do(func() {
		close(m.left)
		var closing sync.WaitGroup
		for _, p := range m.players {
			closing.Go(func() { _ = p.session.Close() }) // always nil
		}
		closing.Wait()
		if m.host != nil {
			_ = m.host.Close() // always nil
		}
		m.all.Wait()
	})
}
