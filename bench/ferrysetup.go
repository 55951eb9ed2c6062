package bench

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// retryAfter is the time between repetitions of an unanswered handshake.
	retryAfter = 500 * time.Millisecond
	// patience is how long set-up goes on without any progress.
	patience = 15 * time.Second
	// sweepEvery is the time between looks at all endpoints.
	sweepEvery = 100 * time.Millisecond
	// pace bounds handshakes under way, so that set-up does not overflow the
	// relay's socket buffer.
	pace = 1024
)

// ferryState is how far an endpoint is.
type ferryState uint8

const (
	ferryWaiting ferryState = iota // for its reservation
	ferryBinding                   // BIND was sent
	ferryBound                     // a host: ready; a player: waits for its host
	ferryAsking                    // a player: CONNECT_REQUEST was sent
	ferryReady
)

// ferryPeer is an endpoint during set-up.
type ferryPeer struct {
	id    proto.AllocationID
	relay netip.AddrPort
	bind  []byte
	ask   []byte // CONNECT_REQUEST; nil for a host
	state ferryState
	said  time.Time // when it last sent something
}

// ferryTicket is a reservation for endpoint ep.
type ferryTicket struct {
	ep     int
	ticket client.Ticket
}

// ferrySetup takes all endpoints from reservation to link. The goroutine of
// Open owns all but requests; those that reserve hand tickets over.
type ferrySetup struct {
	f        *Ferry
	rig      *Rig
	peers    []ferryPeer
	requests atomic.Uint64
	signer   proto.Signer

	ready    int
	inFlight int
	progress time.Time // last change of a state
	swept    time.Time
	refusals map[string]int
}

func newFerrySetup(f *Ferry, r *Rig) *ferrySetup {
	return &ferrySetup{
		f: f, rig: r, peers: make([]ferryPeer, r.plan.Len()),
		progress: time.Now(), swept: time.Now(), refusals: map[string]int{},
	}
}

// reserve starts the goroutines that talk to the API. They end with ctx, which
// the first that fails cancels; wait returns its error once all have ended.
func (s *ferrySetup) reserve(ctx context.Context, cancel context.CancelFunc) (<-chan ferryTicket, func() error) {
	tickets := make(chan ferryTicket, pace)
	var next atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	var failure error
	for range min(s.f.cfg.Workers, s.rig.plan.Matches) {
		wg.Go(func() {
			for m := next.Add(1) - 1; m < int64(s.rig.plan.Matches); m = next.Add(1) - 1 {
				if err := s.reserveMatch(ctx, int(m), tickets); err != nil {
					once.Do(func() {
						if ctx.Err() == nil {
							failure = err
						}
						cancel()
					})
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { defer close(ended); wg.Wait(); close(tickets) }()
	return tickets, func() error { <-ended; return failure }
}

// reserveMatch makes one host's allocation and those of its players.
func (s *ferrySetup) reserveMatch(ctx context.Context, m int, tickets chan<- ferryTicket) error {
	p := &s.rig.plan
	host := m * (1 + p.Players)
	ticket, err := client.Reserve(ctx, s.f.api, p.Players, s.f.cfg.Region)
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	code, err := s.f.api.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		return fmt.Errorf("joincode: %w", err)
	}
	s.requests.Add(2)
	for ep := host; ; ep++ {
		select {
		case tickets <- ferryTicket{ep, ticket}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if ep == host+p.Players {
			return nil
		}
		if ticket, err = client.Redeem(ctx, s.f.api, code); err != nil {
			return fmt.Errorf("join: %w", err)
		}
		s.requests.Add(1)
	}
}

// bindAll drives the handshakes until every endpoint is ready.
func (s *ferrySetup) bindAll(ctx context.Context, tickets <-chan ferryTicket) error {
	err := s.rig.Await(ctx,
		func() bool { return s.ready == len(s.peers) },
		func(now time.Time) error {
			var err error
			if tickets, err = s.admit(ctx, tickets, now); err != nil {
				return err
			}
			return s.sweep(now)
		}, s.handle)
	s.rig.Setup.Requests = s.requests.Load()
	return err
}

// admit takes tickets that are there. The channel that it returns is nil once
// all have come.
func (s *ferrySetup) admit(ctx context.Context, tickets <-chan ferryTicket, now time.Time) (<-chan ferryTicket, error) {
	for tickets != nil && s.inFlight < pace {
		select {
		case t, ok := <-tickets:
			if !ok {
				return nil, nil
			}
			if err := s.begin(ctx, t, now); err != nil {
				return tickets, err
			}
		default:
			return tickets, nil
		}
	}
	return tickets, nil
}

// begin binds an endpoint to its allocation.
func (s *ferrySetup) begin(ctx context.Context, t ferryTicket, now time.Time) error {
	p := &s.peers[t.ep]
	*p = ferryPeer{id: t.ticket.ID, relay: t.ticket.Server, state: ferryBinding}
	if s.f.cfg.Relay.IsValid() {
		p.relay = s.f.cfg.Relay
	}
	p.bind = s.signer.Append(nil, proto.Bind{ConnectionData: t.ticket.ConnectionData}, &t.ticket.Key)
	if s.rig.plan.Host(t.ep) != t.ep {
		p.ask = proto.ConnectRequest{ID: p.id, ConnectionData: t.ticket.HostConnectionData}.Append(nil)
	}
	if s.f.cfg.Secure != nil {
		t.ticket.Server = p.relay
		if err := s.f.cfg.Secure(ctx, s.rig, t.ep, t.ticket, s.handle); err != nil {
			return err
		}
	}
	s.inFlight++
	s.progress = now
	return s.say(t.ep, p.bind, now)
}

func (s *ferrySetup) say(ep int, pkt []byte, now time.Time) error {
	p := &s.peers[ep]
	p.said = now
	return s.rig.SendTo(ep, p.relay, pkt)
}

// handle takes an answer of the relay.
func (s *ferrySetup) handle(ep int, from netip.AddrPort, pkt []byte) {
	p := &s.peers[ep]
	if from != p.relay {
		return
	}
	switch t, _ := proto.ParseType(pkt); {
	case t == proto.TypeBindReceived && p.state == ferryBinding:
		p.state = ferryBound
		s.inFlight--
		if !s.rig.keepsBind() {
			p.bind = nil
		}
		s.move(ep)
	case t == proto.TypeAccepted && p.state == ferryAsking:
		p.state, p.ask = ferryReady, nil
		s.inFlight--
		s.ready++
		s.progress = time.Now()
	case t == proto.TypeError, t == proto.TypeRejected:
		s.refusals[explainFerry(pkt)]++
	}
}

// move lets a bound endpoint take its next step: players of a bound host ask
// for their link.
func (s *ferrySetup) move(ep int) {
	s.progress = time.Now()
	host := s.rig.plan.Host(ep)
	if ep == host {
		s.peers[ep].state = ferryReady
		s.ready++
		for i := host + 1; i <= host+s.rig.plan.Players; i++ {
			s.ask(i)
		}
		return
	}
	if s.peers[host].state == ferryReady {
		s.ask(ep)
	}
}

// ask sends a player's first CONNECT_REQUEST. An error shows again when it is repeated.
func (s *ferrySetup) ask(ep int) {
	if p := &s.peers[ep]; p.state == ferryBound {
		p.state = ferryAsking
		s.inFlight++
		_ = s.say(ep, p.ask, s.progress)
	}
}

// sweep repeats what got no answer and keeps alive what waits.
func (s *ferrySetup) sweep(now time.Time) error {
	if now.Sub(s.swept) < sweepEvery {
		return nil
	}
	s.swept = now
	if now.Sub(s.progress) > patience {
		return fmt.Errorf("bench: %d of %d endpoints are ready and nothing moves; the relay's refusals: %v", s.ready, len(s.peers), s.refusals)
	}
	ping := DefaultKeepalive
	if k := s.rig.plan.Keepalive; k > 0 {
		ping = k
	}
	for ep := range s.peers {
		var err error
		switch p := &s.peers[ep]; {
		case p.state == ferryBinding && now.Sub(p.said) > retryAfter:
			err = s.say(ep, p.bind, now)
		case p.state == ferryAsking && now.Sub(p.said) > retryAfter:
			err = s.say(ep, p.ask, now)
		case p.state >= ferryBound && now.Sub(p.said) > ping:
			err = s.say(ep, proto.Ping{ID: p.id}.Append(nil), now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keepsBind says that handshakes are repeated under load.
func (r *Rig) keepsBind() bool { return r.plan.BindRate > 0 }

// finish describes the endpoints and flows to the generator.
func (s *ferrySetup) finish() {
	r := s.rig
	for _, sk := range r.Sockets {
		sk.Offset = proto.RelayOverhead
	}
	pings := make([]byte, 0, len(s.peers)*proto.PingLen)
	for ep := range s.peers {
		p, e := &s.peers[ep], &r.Endpoints[ep]
		begin := len(pings)
		pings = proto.Ping{ID: p.id}.Append(pings)
		e.Relay, e.Keepalive, e.Rebind = p.relay, pings[begin:len(pings):len(pings)], p.bind
	}
	payload := make([]byte, r.plan.Payload)
	for _, l := range r.plan.Flows {
		from, to := &s.peers[l.From], &s.peers[l.To]
		relay := proto.Relay{From: from.id, To: to.id, Payload: payload}.Append(nil)
		prefix := append([]byte(nil), relay[:proto.RelayOverhead]...)
		r.Flows = append(r.Flows, Flow{From: l.From, To: l.To, Dst: from.relay, Prefix: prefix})
	}
	r.Sized = true
	r.Explain = explainFerry
	r.Leave = s.leave
}

// leave closes every allocation. Now and then it pauses, so that the relay's
// buffer holds it; what is lost nevertheless ends by its idle time-out.
func (s *ferrySetup) leave() {
	s.f.http.CloseIdleConnections()
	for ep := range s.peers {
		p := &s.peers[ep]
		if s.rig.SendTo(ep, p.relay, proto.Close{ID: p.id}.Append(nil)) != nil {
			return
		}
		if ep%pace == pace-1 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}
