package engine

import (
	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/sock"
	"github.com/ferryrelay/ferry/proto"
)

// admission is a worker's scratch for the cryptography of BIND and
// CONNECT_REQUEST, so that neither allocates.
type admission struct {
	scratch alloc.Scratch
	deriver *alloc.Deriver
	signer  proto.Signer
	key     proto.Key
}

// bind filters a BIND: form, then seal, then signature, the cheapest first.
// Control decides about the nonce and the state.
func (w *worker) bind(now int64, from sock.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseBind(pkt)
	if err != nil {
		return DropSize
	}
	if m.AcceptMode != 0 {
		return DropAcceptMode
	}
	claims, ok := w.sealer.Open(&w.seal.scratch, m.ConnectionData)
	if !ok {
		return DropSeal
	}
	if claims.Role == alloc.RoleTicket {
		return DropTicket
	}
	w.seal.deriver.Key(claims.ID, &w.seal.key)
	if !w.seal.signer.Verify(pkt, &w.seal.key) {
		return DropMAC
	}
	n, outcome := w.hand(&command{kind: proto.TypeBind, from: from, id: claims.ID, nonce: m.Nonce, now: now})
	if outcome == handedOver {
		if m := w.mute.find(from, now); m != nil {
			m.bound(n)
		}
	}
	return outcome
}

// connect filters a CONNECT_REQUEST: form, sender, then seal.
func (w *worker) connect(now int64, from sock.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseConnectRequest(pkt)
	if err != nil || len(m.ConnectionData) != alloc.ConnectionDataLen {
		return DropSize
	}
	sender, ok := w.table.ByEndpoint(from)
	if !ok || sender.ID != m.ID {
		return w.mismatch(now, from, m.ID)
	}
	w.table.Heard(sender.Handle, tick(now))
	c, ok := w.sealer.Open(&w.seal.scratch, m.ConnectionData)
	if !ok {
		return DropSeal
	}
	_, outcome := w.hand(&command{
		kind: proto.TypeConnectRequest, from: from, sender: sender, now: now,
		target: target{role: c.Role, id: c.ID, match: c.Match, joiner: c.Joiner, player: c.Player, tenant: c.Tenant},
	})
	return outcome
}

// disconnect filters a DISCONNECT: form and sender.
func (w *worker) disconnect(now int64, from sock.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseDisconnect(pkt)
	if err != nil {
		return DropSize
	}
	sender, ok := w.table.ByEndpoint(from)
	if !ok || sender.ID != m.From {
		return w.mismatch(now, from, m.From)
	}
	w.table.Heard(sender.Handle, tick(now))
	_, outcome := w.hand(&command{kind: proto.TypeDisconnect, from: from, sender: sender, peer: m.To, now: now})
	return outcome
}

// close filters a CLOSE: form and sender. Who is not bound meets silence.
func (w *worker) close(now int64, from sock.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseClose(pkt)
	if err != nil {
		return DropSize
	}
	sender, ok := w.table.ByEndpoint(from)
	if !ok || sender.ID != m.ID {
		return DropUnbound
	}
	_, outcome := w.hand(&command{kind: proto.TypeClose, from: from, sender: sender, now: now})
	return outcome
}
