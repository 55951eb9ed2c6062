package link

import (
	"io"

	"github.com/ferryrelay/ferry/client"
)

// relayPeer is a peer of a relay link, from its first datagram to its Left.
type relayPeer struct {
	peer     *client.Peer
	addr     Addr
	finished chan struct{} // closed when its reader has said all

	waiting int  // datagrams in the inbox, whose lock guards it
	dropped bool // not to be heard any more; the caller's goroutine owns it
}

// accept takes the players of a host.
func (r *Relay) accept() {
	for r.reserve() {
		peer, err := r.session.Accept(r.ctx)
		if err != nil {
			return
		}
		r.admit(peer)
	}
}

// dial asks for the host of a joiner.
func (r *Relay) dial() {
	peer, err := r.session.Connect(r.ctx)
	switch {
	case err == nil:
		r.join(peer)
	case err == client.ErrConnecting, r.session.Err() != nil:
		// The other Dial will tell, or Ended will.
	default:
		r.in.tell(Refused, nil, err)
	}
}

// join takes the host of a joiner.
func (r *Relay) join(peer *client.Peer) {
	if r.reserve() {
		r.admit(peer)
	}
}

// reserve waits until there is room for a peer. It is false when the session
// has ended.
func (r *Relay) reserve() bool {
	select {
	case r.room <- struct{}{}:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// admit reports a peer and begins to read from it, once all has been said about
// an earlier link to the same player.
func (r *Relay) admit(peer *client.Peer) {
	p := &relayPeer{peer: peer, addr: AddrFromAllocation(peer.ID()), finished: make(chan struct{})}
	for {
		earlier := r.in.register(p)
		if earlier == nil {
			break
		}
		if earlier.peer == peer {
			<-r.room
			return
		}
		<-earlier.finished
	}
	r.in.tell(Joined, p, nil)
	if !r.spawn(func() { r.read(p) }) {
		r.in.unregister(p)
		close(p.finished)
	}
}

// read takes what a peer sends until it leaves or the session ends.
func (r *Relay) read(p *relayPeer) {
	defer close(p.finished)
	defer r.in.unregister(p)
	c := r.in.take()
	for {
		n, err := p.peer.Read(c.buf[:])
		if err != nil {
			r.in.give(c)
			if err == io.EOF {
				r.in.tell(Left, p, nil)
			}
			return
		}
		c.n = n
		c = r.in.push(c, p)
	}
}
