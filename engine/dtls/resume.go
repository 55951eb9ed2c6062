package dtls

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/statefile"
)

// sentBlock is how many sequence numbers of ours are reserved by one store. A
// restart skips what is left of them, which no client minds.
const sentBlock = 1 << 20

const (
	// receivedBlockMax bounds how many of a client's next records are reserved by
	// one store; a restart loses what is left of them.
	receivedBlockMax = 1 << 12
	// A block that is used up sooner than receivedFast is doubled, and one that
	// lasts longer than receivedSlow is halved: so a session stores some ten times
	// a second at most, and a restart loses a fifth of a second of its records.
	receivedFast = int64(50e6)  // ns
	receivedSlow = int64(200e6) // ns
)

// reservation is what the file of sessions says of a session: no number at or
// above these bounds is used before a higher bound is stored. So whatever the next
// process reads there, no number below it was left out, and none above it was used.
type reservation struct {
	sent     atomic.Uint64
	received atomic.Uint64

	file  *statefile.Sessions
	mu    sync.Mutex // guards what follows, and orders stores
	place statefile.Place
	block uint64 // records reserved beyond the one at hand
	last  int64  // when received was raised, since the start of Records
}

// coverSent makes sure that seq is below the stored bound. False means that it
// must not be used.
func (v *reservation) coverSent(seq uint64) bool {
	if seq < v.sent.Load() {
		return true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	bound := min(seq+sentBlock, statefile.MaxSequence)
	return seq < v.sent.Load() || seq < bound && raise(&v.sent, v.file.SetSent, v.place, bound)
}

// coverReceived is coverSent for an authentic record of the client.
func (v *reservation) coverReceived(seq uint64, now func() int64) bool {
	if seq < v.received.Load() {
		return true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if seq < v.received.Load() {
		return true
	}
	at := now()
	switch took := at - v.last; {
	case took < receivedFast:
		v.block = min(2*v.block+1, receivedBlockMax)
	case took > receivedSlow:
		v.block /= 2
	}
	v.last = at
	bound := min(seq+1+v.block, statefile.MaxSequence)
	return seq < bound && raise(&v.received, v.file.SetReceived, v.place, bound)
}

// raise stores a bound, and only then lets it be used.
func raise(bound *atomic.Uint64, store func(statefile.Place, uint64) bool, place statefile.Place, to uint64) bool {
	if !store(place, to) {
		return false
	}
	bound.Store(to)
	return true
}

// release removes the session from the file.
func (v *reservation) release() {
	v.mu.Lock()
	place := v.place
	v.place = 0
	v.mu.Unlock()
	v.file.Remove(place)
}

// store adds a session to the file, with the bounds that hold for a session that
// has received its client's Finished and sent nothing.
func (r *Records) store(s *session, h *halfOpen, finished uint64) {
	if r.conf.Sessions == nil {
		return
	}
	x := &statefile.Session{
		ID: s.id, Serial: s.serial, Source: portable(s.from),
		Suite: h.suite.id, Client: h.client, Server: h.server, Sent: sentBlock, Received: finished + 1,
	}
	if h.extended {
		x.Hash = h.candidate.before
	}
	place := r.conf.Sessions.Add(x)
	if place == 0 {
		return
	}
	s.stored = &reservation{file: r.conf.Sessions, place: place, last: r.now()}
	s.stored.sent.Store(x.Sent)
	s.stored.received.Store(x.Received)
}

// portable returns a source without what it is called in this process only: the
// numbers of the local address and of the listener.
func portable(from endpoint.Endpoint) endpoint.Endpoint {
	const portAndKind = 0xFF_0000_FFFF
	from.Tail &= portAndKind
	return from
}

// dormant is a session of the process before, from which nothing has come yet.
type dormant struct {
	found statefile.FoundSession

	mu   sync.Mutex // guards what follows
	keys *secrets   // nil until the first record comes
	gone bool       // resumed or dropped
}

// dormants are the sessions that may be resumed.
type dormants struct {
	count atomic.Int64
	mu    sync.Mutex // guards the map
	by    map[endpoint.Endpoint]*dormant
}

// restore takes over what the process before left, the latest session of each
// source, and gives up the places of all others.
func (r *Records) restore() {
	file := r.conf.Sessions
	r.dormant.by = make(map[endpoint.Endpoint]*dormant)
	for _, f := range file.Found() {
		_, later := r.dormant.by[f.Source]
		if later || suiteOf(f.Suite) == nil || len(r.dormant.by) == r.conf.MaxSessions {
			file.Remove(f.Place)
			continue
		}
		r.dormant.by[f.Source] = &dormant{found: f}
		r.table.avoid(f.Serial)
	}
	r.dormant.count.Store(int64(len(r.dormant.by)))
}

// find returns the dormant session of a source, or nil.
func (d *dormants) find(from endpoint.Endpoint) *dormant {
	if d.count.Load() == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.by[portable(from)]
}

// remove takes a session out. The caller holds the session's lock.
func (d *dormants) remove(x *dormant) {
	x.gone = true
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.by, x.found.Source)
	d.count.Store(int64(len(d.by)))
}

// resume goes on with a dormant session if an authentic record that is not a
// replayed one has come from its source, and returns it. It leaves pkt as it is.
func (r *Records) resume(from endpoint.Endpoint, pkt []byte) *session {
	d := r.dormant.find(from)
	if d == nil {
		return nil
	}
	rec, _, ok := parseRecord(pkt)
	if !ok || rec.epoch != epoch1 || rec.seq < d.found.Received {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return r.table.source(from)
	}
	if d.keys == nil && !r.deriveAgain(d) {
		r.dormant.remove(d)
		r.conf.Sessions.Remove(d.found.Place)
		return nil
	}
	if _, ok := d.keys.in.open(bytes.Clone(rec.whole), new(scratch)); !ok {
		return nil
	}
	s := &session{
		serial: d.found.Serial, id: d.found.ID, from: from, in: d.keys.in, out: d.keys.out, floor: d.found.Received,
		stored: &reservation{file: r.conf.Sessions, place: d.found.Place, last: r.now()},
	}
	s.stored.sent.Store(d.found.Sent)
	s.stored.received.Store(d.found.Received)
	s.sent.Store(d.found.Sent)
	s.heard.Store(r.clock.Load())
	r.dormant.remove(d)
	if !r.table.revive(s) {
		s.stored.release()
		r.counters.count(DropSessionsFull)
		return nil
	}
	r.counters.count(Resumed)
	return s
}

// deriveAgain makes the keys of a dormant session.
func (r *Records) deriveAgain(d *dormant) bool {
	f := &d.found
	key, ok := r.conf.PSK(f.ID)
	if !ok {
		return false
	}
	keys, err := derive(suiteOf(f.Suite), &key, f.Client[:], f.Server[:], len(f.Hash) > 0, f.Hash)
	d.keys = &keys
	return err == nil
}

// replaceDormant ends the dormant session of a source at which a new one was
// made, which takes its serial if it is of the same allocation.
func (r *Records) replaceDormant(s *session) {
	d := r.dormant.find(s.from)
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return
	}
	if d.found.ID == s.id {
		s.serial = d.found.Serial
	}
	r.dormant.remove(d)
	r.conf.Sessions.Remove(d.found.Place)
}

// forgetDormant drops all sessions from which nothing has come for as long as a
// session may be idle.
func (r *Records) forgetDormant() {
	if r.dormant.count.Load() == 0 || r.clock.Load() < int64(r.conf.Idle) {
		return
	}
	r.dormant.mu.Lock()
	all := make([]*dormant, 0, len(r.dormant.by))
	for _, d := range r.dormant.by {
		all = append(all, d)
	}
	r.dormant.mu.Unlock()
	for _, d := range all {
		d.mu.Lock()
		if !d.gone {
			r.dormant.remove(d)
			r.conf.Sessions.Remove(d.found.Place)
		}
		d.mu.Unlock()
	}
}
