package benchrig

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// retryAfter is the time between repetitions of an unanswered handshake.
	retryAfter = 500 * time.Millisecond
	// StallTimeout is the time without progress after which set-up fails.
	StallTimeout = 15 * time.Second
	// probeAfter is the time without any answer after which set-up checks that the port is open.
	probeAfter = time.Second
	// retryInterval is the time between two calls of retry that do something.
	retryInterval = 100 * time.Millisecond
	// reserveWorkers is how many matches are reserved at a time.
	reserveWorkers = 16
	// maxHandshakes bounds concurrent handshakes, so that set-up does not overflow the
	// relay's socket buffer.
	maxHandshakes = 1024
	// defaultKeepalive is the time between keep-alives of an endpoint that waits
	// for others, if the plan has none.
	defaultKeepalive = 3 * time.Second
)

type ferryState uint8

const (
	ferryReserving  ferryState = iota // no reservation yet
	ferryOpening                      // the connection is being made
	ferryBinding                      // BIND was sent
	ferryBound                        // a host: ready; a player: waits for its host
	ferryConnecting                   // a player: CONNECT_REQUEST was sent
	ferryReady
)

type ferryPeer struct {
	Arrival
	again    *reservation // to connect again; nil over UDP
	state    ferryState
	lastSent time.Time
}

type ferryTicket struct {
	ep int
	reservation
}

// ferrySetup reserves, binds and connects all endpoints. The goroutine of Open owns
// it.
type ferrySetup struct {
	f     *Ferry
	rig   *Rig
	peers []ferryPeer

	ready     int
	inFlight  int
	begin     time.Time
	answered  bool      // anything came back
	progress  time.Time // last change of a state
	lastRetry time.Time
	refusals  map[string]int
}

func newFerrySetup(f *Ferry, r *Rig) *ferrySetup {
	return &ferrySetup{
		f: f, rig: r, peers: make([]ferryPeer, r.Plan.Len()),
		begin: time.Now(), progress: time.Now(), lastRetry: time.Now(), refusals: map[string]int{},
	}
}

// reserve starts the goroutines that call the API, and closes the channel when all have ended. They
// end with ctx; the first that fails calls cancel.
func (s *ferrySetup) reserve(ctx context.Context, cancel context.CancelCauseFunc) <-chan ferryTicket {
	tickets := make(chan ferryTicket, maxHandshakes)
	var next atomic.Int64
	var wg sync.WaitGroup
	matches := s.rig.Plan.Matches - s.rig.Plan.Spare
	for range min(reserveWorkers, matches) {
		wg.Go(func() {
			for m := next.Add(1) - 1; m < int64(matches); m = next.Add(1) - 1 {
				if err := s.reserveMatch(ctx, int(m), tickets); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(tickets)
	}()
	return tickets
}

func (s *ferrySetup) reserveMatch(ctx context.Context, m int, tickets chan<- ferryTicket) error {
	return s.f.reserveMatch(ctx, s.rig.Plan.Players, func(place int, r reservation) error {
		select {
		case tickets <- ferryTicket{s.first(m) + place, r}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (s *ferrySetup) bindAll(ctx context.Context, tickets <-chan ferryTicket) error {
	return s.rig.Await(ctx,
		func() bool { return s.ready == s.first(s.rig.Plan.Matches-s.rig.Plan.Spare) },
		func(now time.Time) error {
			var err error
			if tickets, err = s.takeTickets(ctx, tickets, now); err != nil {
				return err
			}
			s.rig.Dialer.Advance(func(ep int, failed error) {
				if failed == nil {
					failed = s.startBind(ep, now)
				}
				err = errors.Join(err, failed)
			})
			s.rig.TakeEnded(func(ep int) {
				err = errors.Join(err, fmt.Errorf("bench: the relay at %v ended a connection during set-up; errors of the relay: %v",
					s.peers[ep].Relay, s.refusals))
			})
			return errors.Join(err, s.retry(now))
		}, s.handle)
}

func (s *ferrySetup) first(match int) int { return match * (1 + s.rig.Plan.Players) }

// takeTickets starts the handshakes of the tickets that are in the channel, up to
// maxHandshakes at a time. It returns nil for the channel once that is closed.
func (s *ferrySetup) takeTickets(ctx context.Context, tickets <-chan ferryTicket, now time.Time) (<-chan ferryTicket, error) {
	for tickets != nil && s.inFlight < maxHandshakes {
		select {
		case t, ok := <-tickets:
			if !ok {
				return nil, nil
			}
			if err := s.start(ctx, t, now); err != nil {
				return tickets, err
			}
		default:
			return tickets, nil
		}
	}
	return tickets, nil
}

func (s *ferrySetup) start(ctx context.Context, t ferryTicket, now time.Time) error {
	p := &s.peers[t.ep]
	*p = ferryPeer{Arrival: t.Arrival, state: ferryOpening}
	s.inFlight++
	s.progress = now
	done, err := s.rig.Dialer.Connect(ctx, t.ep, t.server)
	if !done || err != nil {
		p.again = &t.reservation
		return err
	}
	return s.startBind(t.ep, now)
}

func (s *ferrySetup) startBind(ep int, now time.Time) error {
	s.peers[ep].state, s.progress = ferryBinding, now
	return s.send(ep, s.peers[ep].Bind, now)
}

func (s *ferrySetup) send(ep int, pkt []byte, now time.Time) error {
	p := &s.peers[ep]
	p.lastSent = now
	return s.rig.SendTo(ep, p.Relay, pkt)
}

func (s *ferrySetup) handle(ep int, from netip.AddrPort, pkt []byte) {
	p := &s.peers[ep]
	if from != p.Relay {
		return
	}
	s.answered = true
	switch t, _ := proto.ParseType(pkt); {
	case t == proto.TypeBindReceived && p.state == ferryBinding:
		p.state, s.progress = ferryBound, time.Now()
		s.inFlight--
		s.advance(s.rig.Plan.Host(ep))
	case t == proto.TypeAccepted && p.state == ferryConnecting:
		p.state = ferryReady
		s.inFlight--
		s.ready++
		s.progress = time.Now()
		_ = s.send(ep, p.Open, s.progress)
		p.Connect, p.Open = nil, nil
	case t == proto.TypeError, t == proto.TypeRejected:
		s.refusals[explainFerry(pkt)]++
	}
}

// advance starts the next step of a match after a BIND: its players that are bound send their
// CONNECT_REQUEST once the host is. retry reports an error that lasts.
func (s *ferrySetup) advance(host int) {
	h := &s.peers[host]
	if h.state == ferryBound {
		h.state = ferryReady
		s.ready++
	}
	for ep := host + 1; h.state == ferryReady && ep <= host+s.rig.Plan.Players; ep++ {
		if p := &s.peers[ep]; p.state == ferryBound {
			p.state = ferryConnecting
			s.inFlight++
			_ = s.send(ep, p.Connect, s.progress)
		}
	}
}

// retry repeats unanswered handshakes and sends keep-alives of endpoints that wait
// for others.
func (s *ferrySetup) retry(now time.Time) error {
	if now.Sub(s.lastRetry) < retryInterval {
		return nil
	}
	s.lastRetry = now
	if s.peers[0].Relay.IsValid() && !IsTCP(s.f.transport) && !s.answered && now.Sub(s.begin) > probeAfter {
		s.begin = now
		if err := checkPort(s.peers[0].Relay); err != nil {
			return err
		}
	}
	switch {
	case now.Sub(s.progress) <= StallTimeout:
	case !s.answered:
		return fmt.Errorf("bench: %v answered nothing: is it the address of the relay for %s, and does a firewall let datagrams pass?", s.peers[0].Relay, s.f.transport)
	default:
		return fmt.Errorf("bench: %d of %d endpoints are ready, and set-up makes no progress; errors of the relay: %v", s.ready, len(s.peers), s.refusals)
	}
	ping := s.rig.Plan.Keepalive
	if ping <= 0 {
		ping = defaultKeepalive
	}
	for ep := range s.peers {
		var err error
		switch p := &s.peers[ep]; {
		case p.state == ferryBinding && now.Sub(p.lastSent) > retryAfter:
			err = s.send(ep, p.Bind, now)
		case p.state == ferryConnecting && now.Sub(p.lastSent) > retryAfter:
			err = s.send(ep, p.Connect, now)
		case p.state >= ferryBound && now.Sub(p.lastSent) > ping:
			err = s.send(ep, p.Keepalive, now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *ferrySetup) finish() {
	r := s.rig
	for ep := range s.peers {
		p, e := &s.peers[ep], &r.Endpoints[ep]
		e.Offset = proto.RelayOverhead
		if p.state == ferryReserving { // of a spare match
			p.Relay = s.peers[0].Relay
			e.Relay = p.Relay
			continue
		}
		e.LastSent = sock.Now() - int64(time.Since(p.lastSent))
		e.Relay, e.Keepalive, e.Rebind = p.Relay, p.Keepalive, p.Bind
		if p.again != nil {
			e.Server, e.Renew = &p.again.server, renewBind(&p.again.ticket)
		}
	}
	payload := make([]byte, r.Plan.Payload)
	for _, l := range r.Plan.Flows {
		from, to := &s.peers[l.From], &s.peers[l.To]
		relay := proto.Relay{From: from.ID, To: to.ID, Payload: payload}.Append(nil)
		prefix := append([]byte(nil), relay[:proto.RelayOverhead]...)
		r.Flows = append(r.Flows, Flow{From: l.From, To: l.To, Dst: from.Relay, Prefix: prefix})
	}
	r.Sized = true
	r.Explain = func(_ int, pkt []byte) string { return explainFerry(pkt) }
	r.Leave = s.leave
}

// renewBind returns BINDs with rising numbers, which a relay asks of a changed endpoint.
func renewBind(t *client.Ticket) func() []byte {
	nonce, signer := uint16(0), proto.Signer{}
	return func() []byte {
		nonce++
		return signer.Append(nil, proto.Bind{ConnectionData: t.ConnectionData, Nonce: nonce}, &t.Key)
	}
}

// leave pauses regularly, so that the relay's socket buffer does not overflow.
func (s *ferrySetup) leave() {
	s.f.http.CloseIdleConnections()
	for ep := range s.peers {
		e := &s.rig.Endpoints[ep]
		ping, err := proto.ParsePing(e.Keepalive)
		if err != nil {
			continue // of a spare match that was not used
		}
		_ = s.rig.SendTo(ep, e.Relay, proto.Close{ID: ping.ID}.Append(nil)) // Its connection may have ended.
		if ep%maxHandshakes == maxHandshakes-1 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}
