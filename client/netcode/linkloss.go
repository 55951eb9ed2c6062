package netcode

import (
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// maxDials is how often one attempt to connect asks the link for its peer again.
const maxDials = 3

// left takes the link's word that a peer is gone.
//
// A relay's host that ends a connection tells the relay some flushes later. Who
// was thrown out and connects again at once, over the link that is still there,
// meets the end of that link: it is about the former connection, so that the
// attempt goes on over a new one.
func (d *Driver) left(at address.Addr) {
	s := d.attempt(at)
	if s == nil || s.dials == maxDials || d.link.Dial() != nil {
		d.ep.Gone(at)
		return
	}
	s.dials++
	for _, old := range d.sessions {
		if old != nil && old.lingers && old.at == at {
			d.part(old) // Its notice has no way any more.
		}
	}
}

// joined makes an attempt go on at once when its link is there, instead of when
// the next request is due: the last one may have had no link to go over.
func (d *Driver) joined(at address.Addr) {
	if s := d.attempt(at); s != nil {
		d.ep.AskAgain(s.conn)
	}
}

// attempt returns the connection that asks for a server at a place, or nil.
func (d *Driver) attempt(at address.Addr) *session {
	for _, s := range d.sessions {
		if s == nil || !s.live() || d.ep.State(s.conn) != utp.StateConnecting {
			continue
		}
		if to, _ := d.ep.Remote(s.conn); to == at {
			return s
		}
	}
	return nil
}

// goneAll ends every connection, since the link lost all peers.
func (d *Driver) goneAll() {
	for _, s := range d.sessions {
		if s == nil {
			continue
		}
		if at, ok := d.ep.Remote(s.conn); ok {
			d.ep.Gone(at)
		}
	}
}
