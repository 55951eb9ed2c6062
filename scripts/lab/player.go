package lab

import (
	"encoding/binary"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/habits"
	"github.com/ferryrelay/ferry/proto"
)

const (
	pingPeriod = 3e9         // ns without sending, before a PING; the default of FleetConfig.PingEvery
	stampLen   = 8 + 8       // time and sequence number at the start of a payload
	minPayload = stampLen    // bytes
	noRoam     = int64(-1e9) // roamedAt while no roam is in progress
)

// player is one client of habits, with a game on top. Times are in nanoseconds. The
// goroutine of its Fleet owns it.
type player struct {
	habits.Client
	number             int // index of its match
	id                 proto.AllocationID
	key                proto.Key
	data               []byte // its own connection data
	hostConnectionData []byte // nil: this is the host
	other              *player
	departed           bool // it has left, or does not take part

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

// newPlayer returns the player of an allocation, without a fleet.
func newPlayer(a api.Allocation) *player {
	return &player{
		id: proto.AllocationID(a.AllocationIDBytes), key: proto.Key(a.Key), data: a.ConnectionData,
		hostConnectionData: a.HostConnectionData, roamedAt: noRoam,
	}
}

// join makes the player one of a fleet.
func (p *player) join(f *Fleet) {
	p.Client = habits.New(habits.UTP27(), habits.Credentials{ID: p.id, Key: p.key[:], ConnectionData: p.data, Ticket: p.hostConnectionData},
		func(pkt []byte) {
			if pkt[3] == byte(proto.TypeBind) {
				f.counts.Binds++
				p.bindPkt = append(p.bindPkt[:0], pkt...)
			}
			f.transmit(p, pkt)
		})
	p.Ping = f.cfg.PingEvery
}

func (p *player) host() bool { return len(p.hostConnectionData) == 0 }

// maySend reports whether the relay accepted the link, or the peer has sent a datagram.
func (p *player) maySend() bool { return len(p.Peers) > 0 }

// tick sends what is due. interval is the time between game datagrams; 0 pauses
// the game.
func (p *player) tick(f *Fleet, now, interval int64) {
	if p.departed {
		return
	}
	was := p.Status
	p.Update(time.Duration(now))
	f.countFailure(p, was)
	if p.Status == habits.Bound && p.maySend() && interval > 0 && now >= p.nextSend {
		// Datagrams that a pause has delayed are skipped; the phase stays.
		if late := (now - p.nextSend) / interval; late > 0 {
			p.nextSend += late * interval
		}
		p.sendGameData(f, now)
		p.nextSend += interval
	}
}

// sendGameData sends a game datagram: time, sequence number, zeros.
func (p *player) sendGameData(f *Fleet, now int64) {
	binary.LittleEndian.PutUint64(f.payload, uint64(now))
	binary.LittleEndian.PutUint64(f.payload[8:], p.sent)
	p.sent++
	p.Relay(time.Duration(now), p.other.id, f.payload)
}

// handle processes a datagram from the relay.
func (p *player) handle(f *Fleet, now int64, pkt []byte) {
	if !p.isExpected(pkt) {
		f.counts.Unexpected++
		return
	}
	was := p.Status
	p.Handle(time.Duration(now), pkt)
	switch proto.Type(pkt[3]) {
	case proto.TypeBindReceived:
		f.counts.BindsAnswered++
		if p.rebindSentAt != 0 {
			f.rebinds = append(f.rebinds, now-p.rebindSentAt)
			p.rebindSentAt = 0
		}
	case proto.TypeRelay:
		p.handleRelay(f, now, pkt)
	case proto.TypeDisconnect:
		f.counts.Disconnects++
	case proto.TypeError:
		if code := int(pkt[20]); code < len(f.counts.Errors) {
			f.counts.Errors[code]++
		}
	}
	f.countFailure(p, was)
}

// isExpected reports whether a relay may send that to the player.
func (p *player) isExpected(pkt []byte) bool {
	if habits.Malformed(pkt) != "" {
		return false
	}
	switch proto.Type(pkt[3]) {
	case proto.TypeAccepted, proto.TypeRelay:
		return proto.AllocationID(pkt[4:20]) == p.other.id && proto.AllocationID(pkt[20:36]) == p.id
	case proto.TypeError:
		id := proto.AllocationID(pkt[4:20])
		return id == p.id || id == proto.AllocationID{}
	}
	return true
}

func (p *player) handleRelay(f *Fleet, now int64, pkt []byte) {
	m, err := proto.ParseRelay(pkt)
	if err != nil || len(m.Payload) < stampLen {
		f.counts.Unexpected++
		return
	}
	at := int64(binary.LittleEndian.Uint64(m.Payload))
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
