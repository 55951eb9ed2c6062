package lab

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

// Times of Unity Transport 2.x, in nanoseconds.
const (
	retryPeriod   = 1e9         // between BINDs and between CONNECT_REQUESTs
	pingPeriod    = 3e9         // of silence of its own, unless a fleet has another
	silentPeriods = 3           // of silence of the relay, before it binds again
	maxBinds      = 60          // before it gives up
	stampLen      = 8 + 8       // time and number at the front of a payload
	minPayload    = stampLen    // bytes
	longAgo       = -1 << 62    // a time long ago
	noRoam        = int64(-1e9) // the player has not moved
)

// status is what the game sees of its relay.
type status uint8

const (
	unbound status = iota
	bound
	failed   // ERROR 1 or 4, or no answer at all: the end of the game
	departed // it has left, or never came
)

// player models the relay layer of Unity Transport, strictly: it binds again with
// the same nonce after three silent PING periods, and is dead after ERROR 1 or 4.
// 2.x counts its nonce up, gives up when no BIND is answered, and answers ERROR 3
// with a BIND with the next nonce. 1.x does none of the three. The goroutine of
// its Fleet owns it.
type player struct {
	number             int // of its match
	id                 proto.AllocationID
	key                proto.Key
	data               []byte // connection data of its own
	hostConnectionData []byte // to the host; nil: this is the host
	other              *player
	maySend            bool // it was accepted, or received from the joiner
	status             status
	nonce              uint16
	binds              int
	lastBind           int64
	lastSent           int64
	lastReceived       int64
	lastConnectRequest int64 // its last CONNECT_REQUEST

	nextSend int64 // of the game's datagrams
	leaveAt  int64 // 0: it stays
	sent     uint64
	in       flow

	port          int   // number of its socket
	nextRoam      int64 // 0: it stays where it is
	roamedAt      int64 // noRoam: the relay has its address
	upConfirmed   bool  // since it roamed: the other player received from it
	downConfirmed bool  // since it roamed: it received from the other player
	nextRebind    int64 // 0: it binds only when it must
	rebindSentAt  int64 // a BIND of choice waits for its answer since; 0: none does

	bindPkt []byte // the last BIND, which an attacker may have seen
	resumed int64  // first arrival of what was sent after the Fleet's mark; 0: none
}

// newPlayer takes what the API hands out. The ticket is empty for a host.
func newPlayer(a api.Allocation) *player {
	return &player{
		id: proto.AllocationID(a.AllocationIDBytes), key: proto.Key(a.Key), data: a.ConnectionData,
		hostConnectionData: a.HostConnectionData, lastBind: longAgo, lastConnectRequest: longAgo, roamedAt: noRoam,
	}
}

func (p *player) host() bool { return len(p.hostConnectionData) == 0 }

// tick sends what is due. interval is that of the game's datagrams in
// nanoseconds, 0 for a player who only waits.
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
			// After a pause it keeps its phase and does not make up for it.
			if late := (now - p.nextSend) / interval; late > 0 {
				p.nextSend += late * interval
			}
			p.sendGameData(f, now)
			p.nextSend += interval
		}
	}
}

// keep does what a bound client does beside the game.
func (p *player) keepAlive(f *Fleet, now int64) {
	ping := int64(f.cfg.PingEvery)
	if now-p.lastSent > ping {
		p.send(f, now, proto.Ping{ID: p.id, Number: 1})
	}
	if now-p.lastReceived > silentPeriods*ping {
		p.bind(f, now) // The same nonce, and it stays.
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

// play sends a datagram of the game: time, number, zeros.
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

// take handles a datagram from the relay.
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

// refused takes an ERROR.
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

// flowWindow is how far behind the newest number duplicates are recognised.
const flowWindow = 4096

// flow counts what arrives of one direction of a match. The goroutine of the
// Fleet owns it.
type flow struct {
	unique, duplicates uint64
	next               uint64 // one above the highest number seen
	seen               [flowWindow / 64]uint64
}

// take counts a number, which begins at 0, and reports whether it is new. What
// is older than the window counts as a duplicate.
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
