package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/test/habits"
)

// What a game does, in milliseconds.
const (
	playerTick   = 250    // between two datagrams to each peer
	playerForget = 40_000 // ms; a peer that was silent for so long is forgotten
)

type player struct {
	habits.Client
	habit       habits.Habit
	net         *netsim
	name        string
	reservation *mReservation
	host        *player
	ep          endpoint.Endpoint

	began    int64 // ms; when it was allocated
	linked   int64 // ms; when it was connected first
	lastGame int64
	sequence uint32
	peers    map[mID]*peerState // what Client.Peers did

	late    bool // it binds after the end of its allocation
	paused  bool
	hasQuit bool  // quit, silently
	backAt  int64 // ms; when all its peers were lastReceived again after a fault
	errors  map[byte]int
	noticed string // what no relay may send
}

type peerState struct {
	lastReceived int64
	got          uint32
	messages     int
}

func newPlayer(n *netsim, name string, habit habits.Habit, host *player, card *mReservation) *player {
	p := &player{
		net: n, name: name, habit: habit, host: host, ep: n.address(), reservation: card, began: n.now,
		peers: map[mID]*peerState{}, errors: map[byte]int{},
	}
	cred := habits.Credentials{ID: card.id, Key: card.key, ConnectionData: []byte(card.data)}
	if host != nil {
		cred.Ticket = []byte(card.ticket)
	}
	p.Client = habits.New(habit.Kind, cred, func(pkt []byte) {
		n.schedule(flight{toRelay: true, client: p.ep, pkt: bytes.Clone(pkt)})
	})
	if habit.Ping > 0 {
		p.Ping = habit.Ping
	}
	return p
}

func (p *player) clock() time.Duration { return time.Duration(p.net.now) * time.Millisecond }

func (p *player) age() time.Duration { return time.Duration(p.net.now-p.began) * time.Millisecond }

func (p *player) update() {
	h := &p.habit
	hidden := h.HiddenFor > 0 && p.age() >= h.Hidden && p.age() < h.Hidden+h.HiddenFor
	if p.age() < h.Lobby || hidden {
		return
	}
	p.Update(p.clock())
	if h.Shutdown > 0 && p.age() >= h.Shutdown {
		for _, peer := range slices.Clone(p.Peers) {
			p.Leave(p.clock(), peer, h.Disposed)
		}
		return
	}
	if p.Status == habits.Bound && p.linked != 0 && p.net.now-p.linked >= h.Quiet.Milliseconds() {
		p.play(p.net.now)
	}
}

func (p *player) play(now int64) {
	if now-p.lastGame < playerTick {
		return
	}
	p.lastGame = now
	for _, id := range p.Peers {
		if now-p.peer(id).lastReceived > playerForget {
			p.Forget(id)
			return
		}
	}
	for _, id := range p.Peers {
		p.sequence++
		content := make([]byte, 4+p.sequence%40)
		binary.BigEndian.PutUint32(content, p.sequence)
		p.Relay(p.clock(), id, content)
	}
}

func (p *player) peer(id mID) *peerState {
	s := p.peers[id]
	if s == nil {
		s = &peerState{lastReceived: p.net.now}
		p.peers[id] = s
	}
	return s
}

func (p *player) handle(pkt []byte) {
	if p.noticed == "" {
		p.noticed = p.handleMismatch(pkt)
	}
	if p.noticed != "" {
		p.net.fail("%s got %x: %s", p.name, pkt, p.noticed)
	}
	if pkt[3] == 12 {
		p.errors[pkt[20]]++
	}
	p.Handle(p.clock(), pkt)
	if pkt[3] == 10 && !p.Left {
		p.receivedRelay(pkt)
	}
	if len(p.Peers) > 0 && p.linked == 0 {
		p.linked = p.net.now
	}
	for id := range p.peers {
		if !slices.Contains(p.Peers, [16]byte(id)) {
			delete(p.peers, id)
		}
	}
	for _, id := range p.Peers {
		p.peer(id)
	}
}

// handleMismatch says why no relay may send this to this client, if so. What is meant
// for the address's former owner is let pass.
func (p *player) handleMismatch(pkt []byte) string {
	if why := habits.Malformed(pkt); why != "" {
		return why
	}
	switch {
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
	return !p.hasQuit && !p.Left && p.Status != habits.Failed && !p.late && (p.host == nil || p.host.isAlive())
}

func (p *player) receivedRelay(pkt []byte) {
	from, sequence := mID(pkt[4:20]), binary.BigEndian.Uint32(pkt[38:])
	if !slices.Contains(p.Peers, [16]byte(from)) {
		return // for the previous owner of the address, or the peer has closed
	}
	if p.host != nil && from != p.host.reservation.id {
		p.net.fail("%s receives from a player that it should not know", p.name)
	}
	if p.host == nil && p.net.leavers[from] {
		p.Forget(from) // a late datagram of a peer that has left
		return
	}
	s := p.peer(from)
	s.lastReceived, s.got = p.net.now, sequence
	s.messages++
}

// isInTouch reports whether all of its peers were lastReceived since a time.
func (p *player) isInTouch(since int64) bool {
	if p.Status != habits.Bound || p.host != nil && len(p.Peers) == 0 {
		return false
	}
	for _, id := range p.Peers {
		if p.peer(id).lastReceived < since {
			return false
		}
	}
	return true
}

func (p *player) String() string {
	e := p.net.entry(p.reservation)
	return fmt.Sprintf("%s (%s, PING %v) at %v, nonce %d, status %d, peers %d, errors %v; in the table at %v, nonce %d, link %x, flags %b",
		p.name, p.habit.Name, p.Ping, p.ep, p.Nonce, p.Status, len(p.Peers), p.errors, e.Endpoint, e.Nonce, uint64(e.Link), e.Flags)
}
