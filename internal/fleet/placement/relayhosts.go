package placement

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// The bounds of what a relay remembers of its hosts. Of a host beyond maxHosts the
// store forgets after [HostTTL], as it does of an end beyond maxEnds. A code beyond maxMoves
// does not move: players do not find the host that has taken the place of another one.
const (
	maxHosts = 1 << 20
	maxEnds  = 1 << 16
	maxMoves = 1 << 16
)

// relayHosts are the hosts of a relay, and the ends and moves that the store has yet to learn of. Any
// goroutine may call its methods.
type relayHosts struct {
	start   time.Time
	moveNow chan struct{} // a move was added

	mu    sync.Mutex // guards the following fields; held for no call
	hosts hosts
	ends  []HostEntry
	moves []move // not sent yet, the oldest first
	// made are moves that the store may lose, by the former host, as long as that is held.
	made map[proto.AllocationID]move

	moved, hostsDropped, endsDropped, movesDropped uint64
}

// move is a code that passes from a host to the one that has taken its place.
type move struct {
	tenant   uint64
	code     string
	from, to proto.AllocationID
	number   uint64 // of those that were made
}

func newRelayHosts() *relayHosts {
	return &relayHosts{start: time.Now(), moveNow: make(chan struct{}, 1), hosts: newHosts(), made: make(map[proto.AllocationID]move)}
}

func (r *relayHosts) addStats(st *AnnouncerStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st.Hosts, st.Ends, st.Moves = r.hosts.len(), len(r.ends), r.moved
	st.HostsDropped, st.EndsDropped, st.MovesDropped = r.hostsDropped, r.endsDropped, r.movesDropped
}

// stampAt returns a time in units of announceTick since the announcer was made, from 1.
func (r *relayHosts) stampAt(t time.Time) uint32 {
	return uint32(max(t.Sub(r.start), 0)/announceTick) + 1
}

// HostReserved adds a new host, whose home the API process is about to store. It must
// be called before HostEnded for the same host, see engine.Hooks.OnReserve.
func (r *relayHosts) HostReserved(id proto.AllocationID, tenant uint64) {
	r.add(id, tenant, r.stampAt(time.Now()))
}

// HostReturned adds a host of an earlier run, or one that may come back to this run. It
// is sent to the store before other hosts.
func (r *relayHosts) HostReturned(id proto.AllocationID, tenant uint64) { r.add(id, tenant, 0) }

func (r *relayHosts) add(id proto.AllocationID, tenant uint64, sent uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.hosts.find(id) != nil:
	case r.hosts.len() >= maxHosts:
		r.hostsDropped++
	default:
		r.hosts.add(id, tenant, time.Now(), sent)
	}
}

// KeepCode sets the code of a host that is held. It ignores other hosts, and malformed
// codes.
func (r *relayHosts) KeepCode(id proto.AllocationID, code string) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.hosts.find(id); h != nil {
		h.code = packed
	}
}

// HostMigrated moves the code of a host to the one that has taken its place. Both are held,
// the former one until no player may take its place any more, so that API processes find the
// relay by the code at any time. The store gets the move at once, and again until it answers.
func (r *relayHosts) HostMigrated(tenant uint64, code string, from, to proto.AllocationID) {
	r.mu.Lock()
	r.addMove(move{tenant: tenant, code: code, from: from, to: to})
	r.mu.Unlock()
	select {
	case r.moveNow <- struct{}{}:
	default:
	}
}

// addMove queues a move. The caller holds mu.
func (r *relayHosts) addMove(m move) {
	if len(r.moves) < maxMoves {
		r.moves = append(r.moves, m)
	} else {
		r.movesDropped++
	}
}

// HostEnded removes a host that has ended. It ignores allocations that are not held.
func (r *relayHosts) HostEnded(id proto.AllocationID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.made, id)
	gone, ok := r.hosts.remove(id)
	switch {
	case !ok:
	case len(r.ends) >= maxEnds:
		r.endsDropped++
	default:
		r.ends = append(r.ends, gone.entry())
	}
}

// isRestoring reports whether the store may lead a code to a host that has ended, in place of the
// one that this relay has for it.
func (r *relayHosts) isRestoring() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest, ok := r.hosts.oldestSent()
	return len(r.moves) > 0 || ok && oldest == 0
}

func (r *relayHosts) oldest() (count int, stamp uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamp, _ = r.hosts.oldestSent()
	return r.hosts.len(), stamp
}

func (r *relayHosts) first(dst []HostEntry, n int, before uint32) []HostEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hosts.first(dst, n, before)
}

// confirmHosts records that hosts were sent at that stamp. It clears the lost codes, and returns the
// hosts that had them.
func (r *relayHosts) confirmHosts(sent []HostEntry, now uint32, lost []Lost) (cleared []proto.AllocationID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range sent {
		r.hosts.markSent(x.Host, now)
	}
	for _, l := range lost {
		if r.clearLostCode(l.Host, sent) {
			cleared = append(cleared, l.Host)
		}
	}
	return cleared
}

// clearLostCode clears the code of a host that was sent, unless the host has got another
// code since, and reports whether it did. The caller holds mu.
func (r *relayHosts) clearLostCode(id proto.AllocationID, all []HostEntry) bool {
	h := r.hosts.find(id)
	sent := slices.IndexFunc(all, func(x HostEntry) bool { return x.Host == id })
	if h == nil || sent < 0 {
		return false
	}
	code, _ := joincode.Pack(all[sent].Code)
	if h.code == 0 || h.code != code {
		return false
	}
	h.code = 0
	return true
}

func (r *relayHosts) firstMove() (m move, needed, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.moves) == 0 {
		return move{}, false, false
	}
	return r.moves[0], r.hosts.find(r.moves[0].to) != nil, true
}

func (r *relayHosts) confirmMove(m *move, moved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.moves = r.moves[1:]; len(r.moves) == 0 {
		r.moves = nil
	}
	from, to := r.hosts.find(m.from), r.hosts.find(m.to)
	if from != nil {
		from.code = 0
	}
	if to == nil || !moved {
		return
	}
	r.moved++
	m.number = r.moved
	to.code, _ = joincode.Pack(m.code)
	if from != nil {
		r.made[m.from] = *m
	}
}

// repeatMoves queues moves again that the store may have lost: it then has the code of the
// former host, which is older than the new one.
func (r *relayHosts) repeatMoves() {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := slices.SortedFunc(maps.Values(r.made), func(x, y move) int { return cmp.Compare(x.number, y.number) })
	r.moves = append(again, r.moves...)
}

// moveFromEnded queues the move of a lost code from a holder that has ended. It reports false, and queues
// nothing, if the holder is held or the host has no code.
func (r *relayHosts) moveFromEnded(l Lost) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hosts.find(l.Host)
	if h == nil || h.code == 0 || r.hosts.find(l.Holder) != nil {
		return false
	}
	r.addMove(move{tenant: h.tenant, code: joincode.Unpack(h.code), from: l.Holder, to: l.Host})
	return true
}

func (r *relayHosts) firstEnds(dst []HostEntry, n int) []HostEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(dst, r.ends[:min(len(r.ends), n)]...)
}

// confirmEnds removes the n oldest ends, which were sent. New ones are behind them.
func (r *relayHosts) confirmEnds(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends = r.ends[n:]; len(r.ends) == 0 {
		r.ends = nil
	}
}
