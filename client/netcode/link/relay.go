package link

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/proto"
)

// relayLink is a link of a host or joiner through a Ferry relay. Receive looks at the peers
// in turn, so that a loud one leaves the others theirs.
type relayLink struct {
	session *client.Session
	joiner  bool
	work    sync.WaitGroup // the session's Run, and a Dial
	dialled chan dialled   // capacity one: there is one Dial at a time

	// The caller's goroutine owns these.
	peers   map[address.Addr]*client.Peer // from Joined to Left
	order   []*client.Peer                // the same, in the order of their turns
	turn    int                           // whose it is; len(order): that of events
	next    *client.Peer                  // will join when an earlier link to it has Left
	dials   bool
	err     error // why the link ended
	stats   Stats
	scratch [MaxDatagram]byte // for a caller with a small buffer
}

type dialled struct {
	peer *client.Peer
	err  error
}

var _ Link = (*relayLink)(nil)

// OpenRelay binds the allocation of the ticket, for a joiner connects it to its host, whose
// Joined is then the first event, and returns the host's address. It waits for the relay until
// ctx ends. A host that does not call Receive holds up to MaxPeers times ReceiveQueue datagrams
// of 1.5 KB.
//
// Errors wrap client.ErrConfig, or are those of Bind and Connect of the session; nothing runs then.
func OpenRelay(ctx context.Context, cfg client.Config) (l Link, host address.Addr, err error) {
	session, err := client.New(cfg)
	if err != nil {
		return nil, address.Addr{}, err
	}
	r := &relayLink{
		session: session,
		joiner:  len(cfg.Ticket.HostConnectionData) > 0,
		dialled: make(chan dialled, 1),
		peers:   make(map[address.Addr]*client.Peer),
	}
	// Run returns what Err of the session returns.
	r.work.Go(func() { _ = session.Run(context.Background()) })
	if err = session.Bind(ctx); err == nil && r.joiner {
		r.next, err = session.Connect(ctx)
	}
	if err != nil {
		_ = r.Close()
		return nil, address.Addr{}, err
	}
	if r.joiner {
		host = addrOf(r.next)
	}
	return r, host, nil
}

// Session returns the session of a relay's link, also below a simulation, for its Roam, RTT and
// Stats, and nil for any other link. Reading from it is the link's.
func Session(l Link) *client.Session {
	switch l := l.(type) {
	case *relayLink:
		return l.session
	case interface{ Unwrap() Link }:
		return Session(l.Unwrap())
	}
	return nil
}

func addrOf(p *client.Peer) address.Addr { return address.FromAllocation(p.ID()) }

func (r *relayLink) Dial() error {
	switch {
	case !r.joiner:
		return client.ErrRole
	case r.err != nil:
		return r.err
	case r.dials:
		return nil
	}
	r.dials = true
	r.work.Go(func() {
		peer, err := r.session.Connect(context.Background()) // It ends with the session.
		r.dialled <- dialled{peer, err}
	})
	return nil
}

func (r *relayLink) Advance(time.Time) {}

func (r *relayLink) Receive(b []byte) Event {
	for silent := 0; r.err == nil && silent <= len(r.order); silent++ {
		var e Event
		if r.turn < len(r.order) {
			e = r.read(b)
		} else {
			r.turn = 0
			e = r.news()
		}
		if e.Kind != Nothing {
			return e
		}
	}
	return Event{}
}

func (r *relayLink) read(b []byte) Event {
	p, buf := r.order[r.turn], b
	if len(b) < len(r.scratch) {
		buf = r.scratch[:]
	}
	for {
		n, ok, err := p.TryRead(buf)
		switch {
		case err == io.EOF: // Behind the last datagram.
			r.forget(addrOf(p))
			return Event{Kind: Left, Addr: addrOf(p)}
		case errors.Is(err, client.ErrLinkLost):
			r.forget(addrOf(p))
			return Event{Kind: Left, Addr: addrOf(p), Err: err}
		case ok && n > len(b):
			r.stats.Discarded++
			continue
		}
		r.turn++
		if !ok || err != nil { // The end of the session is among the news.
			return Event{}
		}
		r.stats.Received++
		r.stats.ReceivedBytes += uint64(n)
		return Event{Kind: Datagram, Addr: addrOf(p), N: copy(b, buf[:n])}
	}
}

func (r *relayLink) news() Event {
	if err := r.session.Err(); err != nil {
		r.err = err
		r.drop()
		return Event{Kind: Ended, Err: err}
	}
	select {
	case d := <-r.dialled:
		r.dials = false
		switch {
		case d.err != nil:
			return Event{Kind: Refused, Err: d.err}
		case r.peers[addrOf(d.peer)] != d.peer:
			r.next = d.peer
		}
	default:
	}
	if r.next == nil && !r.joiner {
		r.next, _ = r.session.TryAccept() // The next Receive returns the error.
	}
	if p := r.next; p != nil && r.peers[addrOf(p)] == nil {
		r.next = nil
		r.peers[addrOf(p)] = p
		r.order = append(r.order, p)
		return Event{Kind: Joined, Addr: addrOf(p)}
	}
	return Event{}
}

func (r *relayLink) forget(at address.Addr) {
	i := slices.Index(r.order, r.peers[at])
	r.order = slices.Delete(r.order, i, i+1)
	if i < r.turn {
		r.turn--
	}
	delete(r.peers, at)
}

func (r *relayLink) drop() {
	clear(r.peers)
	clear(r.order)
	r.order, r.next = r.order[:0], nil
}

func (r *relayLink) Send(to address.Addr, b []byte) error {
	p := r.peers[to]
	_, relayed := to.Allocation()
	switch {
	case r.err != nil:
		return r.err
	case !relayed:
		return ErrAddr
	case p == nil:
		r.stats.Unreachable++
		return ErrAddr
	}
	_, err := p.Write(b)
	switch {
	case err == nil:
		r.stats.Sent++
		r.stats.SentBytes += uint64(len(b))
		return nil
	case err == client.ErrTooLarge:
		return ErrTooLarge
	case err == client.ErrPeerLeft || errors.Is(err, client.ErrLinkLost):
		r.stats.Unreachable++
		return ErrAddr
	}
	return err
}

// Flush does nothing: a session sends at once.
func (r *relayLink) Flush() {}

func (r *relayLink) Disconnect(peer address.Addr) {
	if p := r.peers[peer]; p != nil {
		_ = p.Close()
		r.forget(peer)
	}
}

func (r *relayLink) Local() address.Addr { return address.FromAllocation(r.session.ID()) }

func (r *relayLink) Overhead() int { return proto.RelayOverhead }

func (r *relayLink) Stats() Stats {
	st, session := r.stats, r.session.Stats()
	st.Unsent, st.QueueFull = session.Unsent, session.QueueDropped
	st.Unreachable += session.Errors[proto.ErrorNotConnected]
	return st
}

// Close takes about 40 ms, and returns when nothing of the link runs any more.
func (r *relayLink) Close() error {
	err := r.session.Close()
	r.work.Wait()
	r.err = net.ErrClosed
	r.drop()
	return err
}
