package engine

import "github.com/ferryrelay/ferry/internal/endpoint"

const (
	// mismatchesPerEndpoint is how many ERROR 3 an endpoint gets that does not
	// bind. UTP 1.x does not react to ERROR 3 and binds again only after
	// silence, so telling it more often would keep it out.
	mismatchesPerEndpoint = 3
	// muteMillis is how long such an endpoint meets silence, in milliseconds.
	muteMillis = 10_000

	muteSets = 1024 // 4,096 endpoints: about 200 KiB per worker
	muteWays = 4
)

// muted is what a worker remembers of an endpoint that is not bound to what it
// claims.
type muted struct {
	from  endpoint.Endpoint
	until int64  // ms; silence before
	last  int64  // ms; last use
	bind  uint64 // number of its last BIND in the inbox
	count uint8  // ERROR 3 since it last sent an authentic BIND
}

// muteTable is a fixed-size memory of such endpoints, so that strangers cannot
// make it grow. It belongs to one worker, which is enough: the kernel hands all
// datagrams of an endpoint to the same one.
type muteTable struct {
	sets   [muteSets][muteWays]muted
	secret uint64
}

// find returns the entry of an endpoint, a fresh one if it has none, or nil if
// all places are taken by endpoints that were seen within muteMillis.
func (t *muteTable) find(from endpoint.Endpoint, now int64) *muted {
	set := &t.sets[t.set(from)]
	oldest := &set[0]
	for i := range set {
		m := &set[i]
		if m.from == from {
			m.last = now
			return m
		}
		if m.last < oldest.last {
			oldest = m
		}
	}
	if !oldest.from.IsZero() && now-oldest.last <= muteMillis {
		return nil
	}
	*oldest = muted{from: from, last: now}
	return oldest
}

func (t *muteTable) set(ep endpoint.Endpoint) uint64 {
	x := scatter(ep.Hi^t.secret) ^ ep.Lo
	return scatter(scatter(x)^ep.Tail^t.secret>>7) >> 32 % muteSets
}

// silent reports whether the endpoint meets silence now.
func (m *muted) silent(now int64) bool { return now < m.until }

// told notes that the endpoint was sent an ERROR 3.
func (m *muted) told(now int64) {
	m.count++
	if m.count >= mismatchesPerEndpoint {
		m.count, m.until = 0, now+muteMillis
	}
}

// forgive starts the count of ERROR 3 again: the endpoint sent an authentic BIND.
// Its place may be taken by whoever needs one.
func (m *muted) forgive(now int64) {
	m.count, m.until, m.last = 0, 0, now-muteMillis-1
}
