package lab

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

// Times of Unity Transport 2.x, in nanoseconds.
const (
	retryPeriod   = 1e9         // between BINDs and between CONNECT_REQUESTs
	pingPeriod    = 3e9         // without sending, before a PING; the default of FleetConfig.PingEvery
	silentPeriods = 3           // PING periods without a datagram from the relay before a new BIND
	maxBinds      = 60          // unanswered BINDs before it fails
	stampLen      = 8 + 8       // time and sequence number at the start of a payload
	minPayload    = stampLen    // bytes
	longAgo       = -1 << 62    // before every time
	noRoam        = int64(-1e9) // roamedAt while no roam is in progress
)

// status is the state of a player.
type status uint8

const (
	unbound status = iota
	bound
	failed   // ERROR 1 or 4, REJECTED, or no answer to any BIND: the game is over
	departed // it has left, or does not take part
)

// player models the relay layer of Unity Transport: it binds again with the
// same nonce after three PING periods without a datagram from the relay, and
// fails on ERROR 1 or 4. Version 2.x increments its nonce with each BIND, gives
// up after 60 unanswered BINDs, and answers ERROR 3 with a BIND with the next
// nonce; 1.x does none of these. Times are in nanoseconds. The goroutine of its
// Fleet owns it.
type player struct {
	number             int // index of its match
	id                 proto.AllocationID
	key                proto.Key
	data               []byte // its own connection data
	hostConnectionData []byte // nil: this is the host
	other              *player
	maySend            bool // the relay accepted the link, or the peer has sent a datagram
	status             status
	nonce              uint16
	binds              int
	lastBind           int64
	lastSent           int64
	lastReceived       int64
	lastConnectRequest int64 // its last CONNECT_REQUEST

	nextSend int64 // next game datagram
	leaveAt  int64 // 0: it does not leave
	sent     uint64
	in       flow

	port          int   // index of its socket
	nextRoam      int64 // 0: it does not roam
	roamedAt      int64 // noRoam: no roam is in progress
	upConfirmed   bool  // the other player has received a datagram sent after the roam
	downConfirmed bool  // it has received a datagram since the roam
	nextRebind    int64 // 0: no scheduled BINDs
	rebindSentAt  int64 // when the unanswered scheduled BIND was sent; 0: none

	bindPkt []byte // the last BIND
	resumed int64  // first arrival of a datagram sent after the Fleet's mark; 0: none
}

// newPlayer returns the player of an allocation.
func newPlayer(a api.Allocation) *player {
	return &player{
		id: proto.AllocationID(a.AllocationIDBytes), key: proto.Key(a.Key), data: a.ConnectionData,
		hostConnectionData: a.HostConnectionData, lastBind: longAgo, lastConnectRequest: longAgo, roamedAt: noRoam,
	}
}

func (p *player) host() bool { return len(p.hostConnectionData) == 0 }

// tick sends what is due. interval is the time between game datagrams; 0 pauses
// the game.
func (p *player) tick(f *Fleet, now, interval int64) {
	switch p.status {
	case unbound:
		if now-p.lastBind > retryPeriod {
			if p.binds == maxBinds && !f.cfg.UTP1 {
				f.fail(p)
				return
			}
			p.bind(f, now)
			if !f.cfg.UTP1 {
				p.nonce++
			}
		}
	case bound:
		p.keepAlive(f, now)
		if p.maySend && interval > 0 && now >= p.nextSend {
			// Datagrams that a pause has delayed are skipped; the phase stays.
			if late := (now - p.nextSend) / interval; late > 0 {
				p.nextSend += late * interval
			}
			p.sendGameData(f, now)
			p.nextSend += interval
		}
	}
}

// keepAlive sends PING, BIND and CONNECT_REQUEST of a bound player when they
// are due.
func (p *player) keepAlive(f *Fleet, now int64) {
	ping := int64(f.cfg.PingEvery)
	if now-p.lastSent > ping {
		p.send(f, now, proto.Ping{ID: p.id, Number: 1})
	}
	if now-p.lastReceived > silentPeriods*ping {
		p.bind(f, now) // with the same nonce
		p.lastReceived = now
	}
	if !p.host() && !p.maySend && now-p.lastConnectRequest >= retryPeriod {
		p.lastConnectRequest = now
		p.send(f, now, proto.ConnectRequest{ID: p.id, ConnectionData: p.hostConnectionData})
	}
}

func (p *player) bind(f *Fleet, now int64) {
	p.binds++
	p.lastBind, p.lastSent = now, now
	p.bindPkt = f.signer.Append(p.bindPkt[:0], proto.Bind{Nonce: p.nonce, ConnectionData: p.data}, &p.key)
	f.counts.Binds++
	f.transmit(p, p.bindPkt)
}

// sendGameData sends a game datagram: time, sequence number, zeros.
func (p *player) sendGameData(f *Fleet, now int64) {
	binary.LittleEndian.PutUint64(f.payload, uint64(now))
	binary.LittleEndian.PutUint64(f.payload[8:], p.sent)
	p.sent++
	p.lastSent = now
	f.scratch = proto.Relay{From: p.id, To: p.other.id, Payload: f.payload}.Append(f.scratch[:0])
	f.transmit(p, f.scratch)
}

func (p *player) send(f *Fleet, now int64, m proto.Message) {
	p.lastSent = now
	f.scratch = m.Append(f.scratch[:0])
	f.transmit(p, f.scratch)
}

// handle processes a datagram from the relay.
func (p *player) handle(f *Fleet, now int64, pkt []byte) {
	t, err := proto.ParseType(pkt)
	if err != nil {
		f.counts.Unexpected++
		return
	}
	p.lastReceived = now
	switch t {
	case proto.TypeBindReceived:
		p.handleBindReceived(f, now)
	case proto.TypeAccepted:
		if m, err := proto.ParseAccepted(pkt); err == nil && m.To == p.id && m.From == p.other.id {
			p.maySend = true
		} else {
			f.counts.Unexpected++
		}
	case proto.TypeRelay:
		p.handleRelay(f, now, pkt)
	case proto.TypeError:
		if m, err := proto.ParseError(pkt); err == nil && (m.ID == p.id || m.ID == proto.AllocationID{}) {
			p.handleError(f, now, m.Code)
		} else {
			f.counts.Unexpected++
		}
	case proto.TypeDisconnect:
		f.counts.Disconnects++
		p.maySend = false
	case proto.TypePing:
	case proto.TypeRejected:
		f.fail(p)
	default:
		f.counts.Unexpected++
	}
}

func (p *player) handleBindReceived(f *Fleet, now int64) {
	f.counts.BindsAnswered++
	if p.status == unbound {
		p.status = bound
	}
	if p.rebindSentAt != 0 {
		f.rebinds = append(f.rebinds, now-p.rebindSentAt)
		p.rebindSentAt = 0
	}
}

func (p *player) handleRelay(f *Fleet, now int64, pkt []byte) {
	m, err := proto.ParseRelay(pkt)
	if err != nil || m.To != p.id || m.From != p.other.id || len(m.Payload) < stampLen {
		f.counts.Unexpected++
		return
	}
	at := int64(binary.LittleEndian.Uint64(m.Payload))
	p.maySend = true
	if !p.in.record(binary.LittleEndian.Uint64(m.Payload[8:])) {
		return
	}
	if len(f.delays) < maxDelays {
		f.delays = append(f.delays, now-at)
	}
	if p.resumed == 0 && at >= f.mark {
		p.resumed = now
	}
	if p.roamedAt != noRoam {
		p.downConfirmed = true
		f.finishRoam(p, now)
	}
	if o := p.other; o.roamedAt != noRoam && at >= o.roamedAt {
		o.upConfirmed = true
		f.finishRoam(o, now)
	}
}

// handleError processes an ERROR.
func (p *player) handleError(f *Fleet, now int64, code proto.ErrorCode) {
	if int(code) < len(f.counts.Errors) {
		f.counts.Errors[code]++
	}
	switch code {
	case proto.ErrorTimeout, proto.ErrorNotFound:
		f.fail(p)
	case proto.ErrorMismatch:
		if p.status != failed && !f.cfg.UTP1 {
			p.nonce++
			p.bind(f, now)
		}
	}
}

// flowWindow is the number of recent sequence numbers among which duplicates
// are detected.
const flowWindow = 4096

// flow counts the received datagrams of one direction of a match. It is not
// safe for concurrent use.
type flow struct {
	unique, duplicates uint64
	next               uint64 // one above the highest number received
	seen               [flowWindow / 64]uint64
}

// record counts a sequence number, which starts at 0, and reports whether it is
// new. Numbers older than the window count as duplicates.
func (f *flow) record(n uint64) bool {
	for ; f.next <= n; f.next++ {
		if n-f.next >= flowWindow { // A jump over the whole window clears it.
			f.seen = [flowWindow / 64]uint64{}
			f.next = n
		}
		f.seen[f.next%flowWindow/64] &^= 1 << (f.next % 64)
	}
	bit := uint64(1) << (n % 64)
	word := &f.seen[n%flowWindow/64]
	if f.next-n > flowWindow || *word&bit != 0 {
		f.duplicates++
		return false
	}
	*word |= bit
	f.unique++
	return true
}
