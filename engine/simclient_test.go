package engine

// A client of the simulated network: the state machine of UTP 1.x and 2.x
// in virtual time. enginetest has it for real sockets.

import (
	"encoding/binary"
	"fmt"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// What a game does, in milliseconds.
const (
	playerRetry  = 1000   // between BINDs, and between CONNECT_REQUESTs
	playerTick   = 250    // between two datagrams to each peer
	playerForget = 40_000 // ms; a peer that was silent for so long is forgotten
)

type playerStatus uint8

const (
	playerUnbound playerStatus = iota
	playerBound
	playerOver // allocation invalid: the game is over
)

// player is one client. It is a host if it has none.
type player struct {
	net         *netsim
	name        string
	version     int
	ping        int64 // ms; its PING period
	reservation *mReservation
	host        *player
	ep          endpoint.Endpoint

	status    playerStatus
	nonce     uint16
	binds     int
	lastBind  int64
	lastSent  int64
	lastHeard int64
	lastConn  int64
	lastGame  int64
	sequence  uint32
	peers     map[mID]*peerState
	order     []mID // of peers, since maps have none

	paused  bool
	hasQuit bool  // quit, silently
	left    bool  // its game is over, by its own wish or its host's
	backAt  int64 // ms; when all its peers were lastReceived again after a fault
	errors  map[byte]int
	noticed string // what no relay may send
}

type peerState struct {
	lastReceived int64
	got          uint32
}

func (p *player) send(pkt []byte) {
	p.lastSent = p.net.now
	p.net.schedule(flight{toRelay: true, client: p.ep, pkt: pkt})
}

func (p *player) bind() {
	p.binds++
	p.lastBind = p.net.now
	p.send(signed(p.reservation, p.nonce, p.reservation.key))
}

// update is what a client does each frame.
func (p *player) update() {
	now := p.net.now
	switch p.status {
	case playerUnbound:
		if now-p.lastBind > playerRetry {
			if p.version == 2 && p.binds == 60 {
				p.status = playerOver
				return
			}
			p.bind()
			if p.version == 2 {
				p.nonce++
			}
		}
	case playerBound:
		if now-p.lastSent > p.ping {
			p.send(pingMessage(p.reservation.id))
		}
		if now-p.lastHeard > 3*p.ping {
			p.lastHeard = now
			p.bind() // with the nonce that it has
		}
		if p.host != nil && !p.left && len(p.peers) == 0 && now-p.lastConn >= playerRetry {
			p.lastConn = now
			p.send(connectMessage(p.reservation.id, p.reservation.ticket))
		}
		p.play(now)
	}
}

// play sends each peer its part of the game.
func (p *player) play(now int64) {
	if now-p.lastGame < playerTick {
		return
	}
	p.lastGame = now
	for _, id := range p.order {
		if now-p.peers[id].lastReceived > playerForget {
			p.forget(id)
			return
		}
	}
	for _, id := range p.order {
		p.sequence++
		p.relay(id, p.sequence)
	}
}

func (p *player) relay(to mID, sequence uint32) {
	pkt := relayMessage(p.reservation.id, to, 4+int(sequence%40))
	binary.BigEndian.PutUint32(pkt[38:], sequence)
	p.send(pkt)
}

// leave closes the connection as the real client does: the transport's own
// disconnect inside a RELAY, and then DISCONNECT.
func (p *player) leave(peer mID) {
	p.relay(peer, closeSequence)
	p.forget(peer)
	p.send(message(9, p.reservation.id, peer))
}

const closeSequence = 1<<32 - 1

// handle takes a datagram as strictly as that version does.
func (p *player) handle(pkt []byte) {
	if p.noticed == "" {
		p.noticed = p.handleMismatch(pkt)
	}
	if p.noticed != "" {
		p.net.fail("%s got %x: %s", p.name, pkt, p.noticed)
	}
	p.lastHeard = p.net.now
	switch pkt[3] {
	case 1:
		p.status = playerBound
	case 6:
		if id := mID(pkt[4:20]); mID(pkt[20:36]) == p.reservation.id && len(p.peers) == 0 && !p.left {
			p.connectTo(id)
		}
	case 8:
		if p.version == 2 {
			p.status = playerOver
		}
	case 9:
		if p.version == 2 && mID(pkt[20:36]) == p.reservation.id {
			p.receivedDisconnect(mID(pkt[4:20]))
		}
	case 10:
		p.receivedRelay(pkt)
	case 12:
		p.receivedError(pkt[20])
	}
}

// handleMismatch says why no relay may send this to this client, if so. What is meant
// for the address's former owner is let pass.
func (p *player) handleMismatch(pkt []byte) string {
	sizes := map[byte]int{1: 4, 2: 22, 6: 36, 8: 36, 9: 36, 12: 21}
	size, known := sizes[pkt[3]]
	switch {
	case pkt[0] != 0xDA || pkt[1] != 0x72 || pkt[2] != 0:
		return "bad header"
	case known && len(pkt) != size:
		return "bad size"
	case !known && pkt[3] != 10:
		return "no type of a server"
	case pkt[3] == 10 && int(binary.BigEndian.Uint16(pkt[36:])) != len(pkt)-38:
		return "bad length"
	case pkt[3] == 6 && p.host == nil && mID(pkt[20:36]) == p.reservation.id:
		return "a host got ACCEPTED"
	case pkt[3] == 12 && (pkt[20] == 1 || pkt[20] == 4) && p.isAlive():
		return "a game that lives was ended"
	}
	return ""
}

// isAlive reports whether nothing that a relay knows of is a reason to end this
// client's game.
func (p *player) isAlive() bool {
	return !p.hasQuit && !p.left && p.status != playerOver && (p.host == nil || p.host.isAlive())
}

func (p *player) connectTo(id mID) {
	if p.peers[id] == nil {
		p.order = append(p.order, id)
		p.peers[id] = &peerState{}
	}
	p.peers[id].lastReceived = p.net.now
}

func (p *player) receivedRelay(pkt []byte) {
	from, sequence := mID(pkt[4:20]), binary.BigEndian.Uint32(pkt[38:])
	if mID(pkt[20:36]) != p.reservation.id || p.left {
		return // for the previous owner of the address
	}
	if sequence == closeSequence {
		if p.peers[from] != nil {
			p.send(message(9, p.reservation.id, from))
			p.receivedDisconnect(from)
		}
		return
	}
	if p.host != nil && from != p.host.reservation.id {
		p.net.fail("%s receives from a player that it should not know", p.name)
	}
	if p.host == nil && p.net.leavers[from] {
		return // a late datagram of a peer that has left
	}
	p.connectTo(from)
	p.peers[from].got = sequence
}

// receivedDisconnect is when the other side has closed the connection.
func (p *player) receivedDisconnect(peer mID) {
	p.forget(peer)
	if p.host != nil {
		p.left = true
	}
}

func (p *player) forget(peer mID) {
	delete(p.peers, peer)
	for i, id := range p.order {
		if id == peer {
			p.order = append(p.order[:i], p.order[i+1:]...)
			return
		}
	}
}

func (p *player) receivedError(code byte) {
	p.errors[code]++
	switch code {
	case 1, 4:
		p.status = playerOver
	case 3:
		if p.version == 2 && p.status != playerOver {
			p.nonce++
			p.bind()
		}
	}
}

// isInTouch reports whether all of its peers were lastReceived since a time.
func (p *player) isInTouch(since int64) bool {
	if p.status != playerBound || p.host != nil && len(p.peers) == 0 {
		return false
	}
	for _, s := range p.peers {
		if s.lastReceived < since {
			return false
		}
	}
	return true
}

func (p *player) String() string {
	e := p.net.entry(p.reservation)
	return fmt.Sprintf("%s (UTP%d, PING %d ms) at %v, nonce %d, status %d, peers %d, errors %v; in the table at %v, nonce %d, link %x, flags %b",
		p.name, p.version, p.ping, p.ep, p.nonce, p.status, len(p.peers), p.errors, e.Endpoint, e.Nonce, uint64(e.Link), e.Flags)
}
