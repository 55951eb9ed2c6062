package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/sock"
	"github.com/ferryrelay/ferry/proto"
)

// FerryConfig is a relay of the Unity Relay message protocol, reached as a game
// does: through its Allocations API.
type FerryConfig struct {
	// BaseURL of the API, such as "http://127.0.0.1:7777". Required.
	BaseURL string
	// Token is the bearer token. Empty for a server that admits anonymous callers.
	Token string
	// Region is asked for. Empty lets the server choose.
	Region string
	// Relay replaces the address that the API advertises. Zero: as advertised.
	Relay netip.AddrPort
	// Workers is how many matches are reserved at a time. 0 = 4, at most 256.
	Workers int
	// AllowRemote permits a BaseURL outside of loopback.
	AllowRemote bool
	// Secure makes the way of an endpoint to the relay an encrypted one and sets
	// its Cipher, before its BIND. What arrives for other endpoints meanwhile goes
	// to others. Nil: plain UDP.
	Secure func(ctx context.Context, r *Rig, ep int, t client.Ticket, others Handler) error
}

// Handler takes a datagram that came to an endpoint; it is valid during the call.
type Handler func(ep int, from netip.AddrPort, pkt []byte)

// Ferry is the Dialect of this project's relay. Its fields are not changed
// after NewFerry; one rig at a time may be open.
type Ferry struct {
	cfg  FerryConfig
	api  *api.Client
	http *http.Transport
}

var (
	_ Churner  = (*Ferry)(nil)
	_ Reserver = (*Ferry)(nil)
)

// NewFerry checks the configuration; nothing is sent yet.
func NewFerry(cfg FerryConfig) (*Ferry, error) {
	setDefault(&cfg.Workers, 4)
	if cfg.Workers < 1 || cfg.Workers > 256 {
		return nil, fmt.Errorf("%w: %d workers", ErrConfig, cfg.Workers)
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("%w: base URL %q", ErrConfig, cfg.BaseURL)
	}
	if !cfg.AllowRemote && !isLoopback(u.Hostname()) {
		return nil, fmt.Errorf("%w: %s", ErrRemote, cfg.BaseURL)
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}
	return &Ferry{
		cfg: cfg, http: transport,
		api: &api.Client{BaseURL: cfg.BaseURL, Token: cfg.Token, HTTP: &http.Client{
			Timeout: api.DefaultTimeout, Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}},
	}, nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// Name is "ferry".
func (f *Ferry) Name() string { return "ferry" }

// Open reserves a match for each host and its players, and binds and connects
// them from the very endpoints that the load will come from.
func (f *Ferry) Open(ctx context.Context, p Plan) (*Rig, error) {
	r, err := NewRig(p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newFerrySetup(f, r)
	tickets, wait := s.reserve(ctx, cancel)
	err = s.bindAll(ctx, tickets)
	cancel()
	if failure := wait(); failure != nil {
		err = failure
	}
	if err != nil {
		f.http.CloseIdleConnections()
		return nil, errors.Join(err, r.close())
	}
	s.finish()
	return r, nil
}

// Reserve asks for an allocation of a host with one player. The relay takes it
// back when nobody binds it.
func (f *Ferry) Reserve(ctx context.Context) error {
	_, err := client.Reserve(ctx, f.api, 1, f.cfg.Region)
	return err
}

// explainFerry names what a relay says apart from RELAY.
func explainFerry(pkt []byte) string {
	switch t, err := proto.ParseType(pkt); {
	case err != nil:
		return "foreign"
	case t == proto.TypeBindReceived:
		return Answer
	case t == proto.TypePing, t == proto.TypeAccepted, t == proto.TypeDisconnect:
		return ""
	case t == proto.TypeError:
		if e, err := proto.ParseError(pkt); err == nil && int(e.Code) < len(ferryErrors) {
			return ferryErrors[e.Code]
		}
		return "ERROR of an unknown code"
	case t == proto.TypeRelay:
		return "RELAY of something else"
	case t == proto.TypeRejected:
		return "REJECTED"
	}
	return "message of another type"
}

// ferryErrors are names for Result.Errors, by code.
var ferryErrors = [...]string{
	proto.ErrorVersion: "ERROR 0 version", proto.ErrorTimeout: "ERROR 1 timed out",
	proto.ErrorUnauthorized: "ERROR 2 unauthorized", proto.ErrorMismatch: "ERROR 3 endpoint mismatch",
	proto.ErrorNotFound: "ERROR 4 not found", proto.ErrorNotConnected: "ERROR 5 not connected",
	proto.ErrorSelfConnect: "ERROR 6 connect to self",
}

// sessionEvery is the time between the datagrams of a session, each way.
const sessionEvery = 50 * time.Millisecond

// ferrySession is one session of a churn: a host and one player, each with a
// socket of its own, as the project's client library plays them. One goroutine
// owns it.
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

func (s *ferrySession) allocate(ctx context.Context) (err error) {
	s.tickets[0], err = client.Reserve(ctx, s.f.api, 1, s.f.cfg.Region)
	return err
}

func (s *ferrySession) joinCode(ctx context.Context) (err error) {
	s.code, err = s.f.api.JoinCode(ctx, s.tickets[0].ID.String())
	return err
}

func (s *ferrySession) join(ctx context.Context) (err error) {
	s.tickets[1], err = client.Redeem(ctx, s.f.api, s.code)
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
	if s.f.cfg.Relay.IsValid() {
		t.Server = s.f.cfg.Relay
	}
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

// play sends from the player to the host and back. At least one datagram has
// to come back.
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
		if !sleepUntil(ctx, round) {
			return ctx.Err()
		}
	}
	return nil
}

// leave closes both sides, player first.
func (s *ferrySession) leave(context.Context) error {
	return errors.Join(s.player.Close(), s.host.Close())
}

// wait returns when nothing of the session runs any more; its context has ended.
func (s *ferrySession) wait() {
	for range s.running {
		<-s.ended
	}
}

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

// Dialect teaches the generator to speak with one kind of relay.
type Dialect interface {
	// Name is a short word for tables: "ferry", "swap", "turn".
	Name() string
	// Open makes every endpoint and flow of the plan ready to send and to be
	// sent to. It starts from NewRig, does what the relay asks for with SendTo
	// and Poll, and fills in Flows. It may take long and must end with ctx.
	// When it fails it closes the rig.
	Open(ctx context.Context, p Plan) (*Rig, error)
}

// Churner is a Dialect that can play whole sessions, for the shape churn.
type Churner interface {
	Dialect
	// Session plays one session from reservation to leave, with datagrams both
	// ways for about play. It calls done after each step that succeeded; the
	// first that fails ends the session with a *StepError. Many goroutines call it.
	Session(ctx context.Context, play time.Duration, done func(step string, took time.Duration)) error
}

// Reserver is a Dialect whose relay reserves allocations over an API, for
// Config.AllocateWorkers.
type Reserver interface {
	Dialect
	// Reserve asks for one allocation, of which nothing is made. Many
	// goroutines call it.
	Reserve(ctx context.Context) error
}

// Plan is what a Dialect has to set up: endpoints in matches of one host and
// its players, and flows between them. Endpoint m*(1+Players) is the host of
// match m, the next Players are its players. All flows are between a host and
// one of its players.
type Plan struct {
	Matches int // at least 1
	Players int // per match, 1 to 255, the host not counted
	Payload int // bytes that follow a flow's prefix, at least StampLen
	Flows   []Link

	// Stride is the number of addresses kept for a match: 2 for pairs, so that
	// host and player differ in the lowest bit, else 256, so that the host has
	// 0 in the last byte.
	Stride int

	// AllowRemote permits destinations outside of loopback.
	AllowRemote bool
	// BindRate says that handshakes will be repeated under load: the Dialect
	// then fills in Endpoint.Rebind.
	BindRate float64
	// Keepalive is the time after which a silent endpoint says something, if
	// the Dialect has something to say. During Open this is the Dialect's own task.
	Keepalive time.Duration

	// Sockets, ReadBuffer and Batch are those of Config.
	Sockets, ReadBuffer, Batch int

	first  uint32 // address of endpoint 0
	single bool   // all endpoints have that address, and a socket each
}

// Link is a direction in which datagrams go: From and To number endpoints.
// Links of one Group are due at the same time when a run is aligned to ticks.
type Link struct {
	From, To int
	Group    int
}

// Rig is a relay as the generator sees it: sockets, endpoints on them, and
// flows that are ready. One goroutine uses it at a time: first Open's, then the
// generator's.
type Rig struct {
	Sockets   []*Socket
	Endpoints []Endpoint // as numbered in the Plan
	Flows     []Flow     // flow i is Plan.Flows[i]
	Setup     Setup      // the Dialect counts Requests; the rest is filled in by the core

	// Sized says that each Prefix ends with the length of the payload, a
	// big-endian u16, which a load whose datagrams differ in size has to set.
	Sized bool

	// Explain names an arriving packet that is no datagram of ours, without
	// allocating. "" is an answer that was to be expected, such as that to a
	// keep-alive; Answer is one to a Rebind; everything else is counted in
	// Result.Errors under that name. Nil: everything is "foreign".
	Explain func(pkt []byte) string

	// Leave says goodbye to the relay with SendTo, so that the next run finds
	// it empty. Nil: nothing to say. It is called once, before the sockets close.
	Leave func()

	plan Plan
}

// Answer is what Explain returns for an answer to an Endpoint's Rebind.
const Answer = "answer"

// Socket is one socket of the generator. It has many endpoints, each with an
// address of its own on the same port.
type Socket struct {
	Group *sock.Group
	Conn  *sock.Conn
	// Offset is where the payload begins in what arrives on this socket: the
	// length of the header that the relay puts or leaves in front of it.
	Offset int

	byLocal []int32 // endpoint number by endpoint.Endpoint.Local; -1 = none
	rx      *sock.RecvBatch
	tx      *sock.SendBatch
}

// Endpoint is one player or host: an address and port that datagrams come from
// and go to.
type Endpoint struct {
	Socket int            // index into Rig.Sockets
	Local  uint16         // number of the source address in Socket.Group
	Addr   netip.AddrPort // what the relay sees

	// Relay is where Keepalive and Rebind go.
	Relay netip.AddrPort
	// Keepalive is the datagram for an endpoint that was silent for
	// Plan.Keepalive. Nil: none.
	Keepalive []byte
	// Rebind is a handshake that an endpoint may repeat at any time. Nil: none.
	Rebind []byte
	// Cipher is for all that the endpoint sends and hears, once the Dialect has
	// set it. Nil: datagrams go as they are. The shape netcode has none.
	Cipher Cipher
}

// Flow is one direction between two endpoints. What is sent is Prefix and then
// the payload; what arrives at endpoint To has the payload at the Offset of its socket.
type Flow struct {
	From, To int            // endpoint numbers
	Dst      netip.AddrPort // where From sends to
	Prefix   []byte         // the relay's header, not changed after Open; may be empty
}
