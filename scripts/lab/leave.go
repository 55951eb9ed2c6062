package lab

import "github.com/ferryrelay/ferry/proto"

// leaving is how a player leaves a match.
type leaving uint8

const (
	bySilence    leaving = iota // as a process that was killed
	byClose                     // CLOSE
	byDisconnect                // DISCONNECT to the other player, then silence
	byBoth                      // DISCONNECT, then CLOSE, as a client does that quits
	leavings
)

// absentShare is the share of hosts without a joiner: one in so many.
const absentShare = 8

// live decides when a match ends and whether it has a joiner at all.
func (f *Fleet) live(h, j *player, now int64) {
	life := int64(f.cfg.Life)
	if life == 0 {
		return
	}
	h.leaveAt = now + life/2 + f.within(life)
	j.leaveAt = h.leaveAt
	if f.rng.IntN(absentShare) == 0 {
		j.status = gone
	}
}

// depart lets the players of matches that are over leave. A place is free when
// both have.
func (f *Fleet) depart(now int64) {
	for i := 0; i+1 < len(f.players); i += 2 {
		h, j := f.players[i], f.players[i+1]
		if h.leaveAt == 0 || now < h.leaveAt {
			continue
		}
		for _, p := range []*player{j, h} {
			f.leave(p, now, leaving(f.rng.IntN(int(leavings))))
		}
		h.leaveAt = 0
		f.free = append(f.free, i/2)
		f.counts.Ended++
	}
}

// leave ends a player. Late datagrams of the relay must not reach the next player, which
// therefore has another port.
func (f *Fleet) leave(p *player, now int64, how leaving) {
	if p.status == bound && p.maySend && (how == byDisconnect || how == byBoth) {
		p.send(f, now, proto.Disconnect{From: p.id, To: p.other.id})
	}
	if p.status == bound && (how == byClose || how == byBoth) {
		p.send(f, now, proto.Close{ID: p.id})
	}
	f.counts.Sent += p.sent
	f.counts.Received += p.in.unique
	f.counts.Duplicates += p.in.duplicates
	p.status, p.sent, p.in, p.bindPkt, p.resumed = gone, 0, flow{}, nil, 0
	p.port = (p.port + 1) % f.cfg.Ports
}

// Matches returns how many matches there are now, with those to whose host
// nobody has come.
func (f *Fleet) Matches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.players)/2 - len(f.free)
}
