package link

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// RelayConfig says how a relay link is opened.
type RelayConfig struct {
	// Session is the client's configuration; its Ticket makes the link a host's
	// or a joiner's. ReceiveQueue in it is how many datagrams of one peer may
	// wait, MaxPeers how many peers a host has.
	Session client.Config
	// ReceiveQueue is how many datagrams of all peers may wait to be received
	// before the newest is dropped. 0 means 4096, 6 MB when full.
	ReceiveQueue int
}

// Relay is a link of a host or joiner through a Ferry relay. Its addresses are
// allocation ids.
//
// A client.Session does the work; one goroutine accepts peers, and one per peer
// reads, so that the farewell of a peer comes before the news that it left.
type Relay struct {
	session *client.Session
	ctx     context.Context // ends with the session
	stop    context.CancelFunc
	joiner  bool
	in      inbox
	room    chan struct{}  // a token per peer that has not been reported as gone
	work    sync.WaitGroup // goroutines that end with the session; Dial adds under the lock of in
	run     sync.WaitGroup // the goroutine that runs the session

	// The caller's goroutine owns these.
	peers   map[Addr]*relayPeer // from Joined to Left
	host    Addr                // a joiner's
	noLinks uint64              // ERROR 5 that were reported
	err     error               // why the link ended
	stats   Stats
}

var _ Link = (*Relay)(nil)

// OpenRelay binds the allocation of the ticket and, for a joiner, connects it
// to its host, whose Joined is then the first event. It waits for the relay
// until ctx ends. Errors wrap client.ErrConfig or ErrConfig, or are those of
// Bind and Connect of the session; nothing runs then.
func OpenRelay(ctx context.Context, cfg RelayConfig) (*Relay, error) {
	if cfg.ReceiveQueue < 0 {
		return nil, fmt.Errorf("%w: ReceiveQueue is negative", ErrConfig)
	}
	session, err := client.New(cfg.Session)
	if err != nil {
		return nil, err
	}
	r := newRelay(session, cfg)
	r.run.Go(r.serve)
	if err := r.begin(ctx); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func newRelay(session *client.Session, cfg RelayConfig) *Relay {
	maxPeers := orDefault(cfg.Session.MaxPeers, 1024)
	r := &Relay{
		session: session,
		joiner:  len(cfg.Session.Ticket.HostConnectionData) > 0,
		in:      newInbox(orDefault(cfg.ReceiveQueue, 4096), orDefault(cfg.Session.ReceiveQueue, 256)),
		// Twice as many, so that players may come while the game has not yet
		// looked who went.
		room:  make(chan struct{}, 2*maxPeers),
		peers: make(map[Addr]*relayPeer),
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

// serve runs the session, and says that it ended when all has been said that
// came before.
func (r *Relay) serve() {
	err := r.session.Run(context.Background())
	r.stop()
	r.in.seal()
	r.work.Wait()
	if err == nil {
		err = net.ErrClosed
	}
	r.in.tell(Ended, nil, err)
}

// begin binds and starts to accept or connects.
func (r *Relay) begin(ctx context.Context) error {
	if err := r.session.Bind(ctx); err != nil {
		return err
	}
	if !r.joiner {
		r.spawn(r.accept)
		return nil
	}
	peer, err := r.session.Connect(ctx)
	if err != nil {
		return err
	}
	r.join(peer)
	r.host = AddrFromAllocation(peer.ID())
	return nil
}

// spawn starts a goroutine, unless the session has ended.
func (r *Relay) spawn(f func()) bool {
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if r.in.sealed {
		return false
	}
	r.work.Go(f)
	return true
}

// Dial makes a joiner ask for its host again, after the link was lost. It does
// not wait: Joined or Refused follows; while the link lives, nothing does.
// Errors: client.ErrRole on a host, net.ErrClosed, or why the link ended.
func (r *Relay) Dial() error {
	if !r.joiner {
		return client.ErrRole
	}
	if r.err != nil {
		return r.err
	}
	if !r.spawn(r.dial) {
		return net.ErrClosed
	}
	return nil
}

// Session returns the session, for its Roam, RTT and Stats. Reading from it is
// the link's.
func (r *Relay) Session() *client.Session { return r.session }

// Advance looks whether the relay has complained of a missing link.
func (r *Relay) Advance(time.Time) {
	if n := r.refusals(); n > r.noLinks {
		r.noLinks = n
		r.in.tell(NoLink, nil, nil)
	}
}

// refusals returns how many ERROR 5 the session has received.
func (r *Relay) refusals() uint64 { return r.session.Stats().Errors[proto.ErrorNotConnected] }

// Receive returns what came from the relay.
func (r *Relay) Receive(b []byte) Event {
	for r.err == nil {
		e, p := r.in.next(b)
		if e.Kind == Nothing {
			return e
		}
		if p != nil {
			e.Addr = p.addr
		}
		if r.keep(&e, p, len(b)) {
			return e
		}
	}
	return Event{}
}

// keep does what an event brings with it. It is false for one that the caller
// shall not see.
func (r *Relay) keep(e *Event, p *relayPeer, size int) bool {
	if p != nil && p.dropped {
		return false
	}
	switch e.Kind {
	case Datagram:
		if e.N > size {
			r.stats.TooLarge++
			return false
		}
		r.stats.Received++
		r.stats.ReceivedBytes += uint64(e.N)
	case Joined:
		r.peers[p.addr] = p
		if r.joiner {
			r.host = p.addr
			r.noLinks = r.refusals() // They are about an earlier link.
		}
	case Left:
		r.release(p)
	case NoLink:
		e.Addr = r.host
		return !r.joiner || r.peers[r.host] != nil
	case Ended:
		r.err = e.Err
		clear(r.peers)
	}
	return true
}

// release forgets a peer and makes room for another.
func (r *Relay) release(p *relayPeer) {
	p.dropped = true
	delete(r.peers, p.addr)
	<-r.room
}

// Send sends a datagram to a peer that has joined.
func (r *Relay) Send(to Addr, b []byte) error {
	p := r.peers[to]
	switch {
	case r.err != nil:
		return r.err
	case !to.allocation:
		return ErrAddr
	case p == nil:
		r.stats.Unreachable++
		return ErrNoPeer
	}
	_, err := p.peer.Write(b)
	switch err {
	case nil:
		r.stats.Sent++
		r.stats.SentBytes += uint64(len(b))
		return nil
	case client.ErrTooLarge:
		return ErrTooLarge
	case client.ErrPeerLeft:
		r.stats.Unreachable++
		return ErrNoPeer
	}
	return err
}

// Flush does nothing: a session sends at once.
func (r *Relay) Flush() {}

// Disconnect tells the relay that the link to a peer is over.
func (r *Relay) Disconnect(peer Addr) {
	if p := r.peers[peer]; p != nil {
		_ = p.peer.Close()
		r.release(p)
	}
}

// Local returns the own allocation.
func (r *Relay) Local() Addr { return AddrFromAllocation(r.session.ID()) }

// Host returns the host of a joiner, known from the start; nowhere on a host.
func (r *Relay) Host() Addr { return r.host }

// Overhead returns 38, the header of RELAY.
func (r *Relay) Overhead() int { return proto.RelayOverhead }

// Stats returns the counters. Unsent and some of QueueFull are the session's.
func (r *Relay) Stats() Stats {
	st, session := r.stats, r.session.Stats()
	st.Unsent = session.Unsent
	st.QueueFull = session.QueueDropped + r.in.lost()
	return st
}

// Close ends every link, the allocation and the session, which takes about 40
// ms, and returns when nothing of it runs any more.
func (r *Relay) Close() error {
	err := r.session.Close()
	r.run.Wait()
	r.err = net.ErrClosed
	clear(r.peers)
	return err
}
