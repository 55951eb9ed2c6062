package dtls

import (
	"bytes"
	"hash"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// maxDerivations is how often keys are derived for the handshakes of one source
// until the last of them was finished or is over. An honest client needs one;
// the others are what a forger may waste, at 20 µs each. So a prefix costs at
// most HalfOpenPerPrefix times this per HandshakeTimeout.
const maxDerivations = 4

// halfOpen is a handshake that was answered with a ServerHello. The worker of
// its source's prefix owns it.
type halfOpen struct {
	from       endpoint.Endpoint
	suite      *suite
	transcript hash.Hash // over ClientHello, ServerHello and ServerHelloDone
	client     [randomLen]byte
	server     [randomLen]byte
	extended   bool
	proven     bool   // by a cookie
	seq        uint16 // of the ClientHello, and so of the ServerHello
	recordSeq  uint64 // the next one of ours in epoch 0
	flight     []byte // ServerHello and ServerHelloDone
	exchange   []byte // the ClientKeyExchange with its header, as far as it came
	missing    int    // bytes of it
	candidate  *candidate
	derived    int   // how often keys were derived
	deadline   int64 // since the start of Records

	older, newer *halfOpen // neighbours by age, of the same worker
}

// candidate is what follows from a ClientKeyExchange: nothing is proven yet.
type candidate struct {
	id     proto.AllocationID
	keys   secrets
	before []byte // the hash of the transcript up to the ClientKeyExchange
}

// same reports whether a hello is the one that was answered.
func (h *halfOpen) same(c *hello, seq uint16) bool {
	return h.seq == seq && bytes.Equal(h.client[:], c.random)
}

// ready reports whether the ClientKeyExchange is complete.
func (h *halfOpen) ready() bool { return len(h.exchange) > 0 && h.missing == 0 }

// hashWith is the hash of the transcript and what follows it.
func (h *halfOpen) hashWith(more ...[]byte) ([]byte, error) {
	c, err := h.transcript.(hash.Cloner).Clone()
	if err != nil {
		return nil, err
	}
	for _, b := range more {
		c.Write(b)
	}
	return c.Sum(nil), nil
}

// admit takes a place for a handshake, or says why there is none.
func (w *worker) admit(prefix endpoint.Endpoint) Event {
	if w.prefixes[prefix] >= w.r.conf.HalfOpenPerPrefix {
		return DropPrefixFull
	}
	if w.r.halfOpen.Add(1) > int64(w.r.conf.HalfOpen) {
		w.r.halfOpen.Add(-1)
		return DropHalfOpenFull
	}
	w.prefixes[prefix]++
	return Answered
}

// admitDirect takes a place for a handshake without a cookie. It leaves half of
// what the prefix may have to those who proved that they are there.
func (w *worker) admitDirect(prefix endpoint.Endpoint) bool {
	if w.prefixes[prefix] >= w.r.conf.HalfOpenPerPrefix/2 {
		return false
	}
	if w.r.direct.Add(1) > int64(w.r.conf.Direct) || w.admit(prefix) != Answered {
		w.r.direct.Add(-1)
		return false
	}
	return true
}

// evict makes a place where there is none, by forgetting the oldest handshake of
// this worker. An honest one is over within two round trips; those that are never
// finished are the oldest, so who has very many sources of his own does not lock
// everybody out for as long as handshakes may take.
func (w *worker) evict() bool {
	if w.oldest == nil {
		return false
	}
	w.drop(w.oldest)
	w.count(Evicted)
	return true
}

// keep remembers a handshake for which there is a place.
func (w *worker) keep(h *halfOpen) {
	w.open[h.from] = h
	h.older = w.newest
	if h.older != nil {
		h.older.newer = h
	} else {
		w.oldest = h
	}
	w.newest = h
}

// drop forgets a handshake.
func (w *worker) drop(h *halfOpen) {
	if h.older != nil {
		h.older.newer = h.newer
	} else {
		w.oldest = h.newer
	}
	if h.newer != nil {
		h.newer.older = h.older
	} else {
		w.newest = h.older
	}
	delete(w.open, h.from)
	prefix := prefixOf(h.from)
	if w.prefixes[prefix]--; w.prefixes[prefix] == 0 {
		delete(w.prefixes, prefix)
	}
	if !h.proven {
		w.r.direct.Add(-1)
	}
	w.r.halfOpen.Add(-1)
}

// expire forgets the handshakes whose time is over.
func (w *worker) expire(now int64) {
	for w.oldest != nil && now >= w.oldest.deadline {
		w.drop(w.oldest)
		w.count(TimedOut)
	}
}
