package dtls

import (
	"bytes"
	"container/list"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/evict"
	"github.com/ferryrelay/ferry/proto"
)

// halfOpen is an unfinished handshake, owned by the worker of its source's prefix.
type halfOpen struct {
	from       endpoint.Endpoint
	suite      *suite
	transcript hash.Hash // over ClientHello, ServerHello and ServerHelloDone
	client     [randomLen]byte
	server     [randomLen]byte
	extended   bool
	validated  bool   // the source address, by a cookie
	seq        uint16 // of the ClientHello, and so of the ServerHello
	recordSeq  uint64 // the next one of ours in epoch 0
	flight     []byte // ServerHello and ServerHelloDone
	exchange   []byte // the ClientKeyExchange with its header, as far as received
	missing    int    // bytes of exchange
	unverified *unverified
	derived    int           // key derivations, if not validated
	retries    atomic.Uint64 // gate of retryRate, if validated
	deadline   int64         // since the start of Records

	at   *list.Element // of worker.byAge
	item *evict.Item[endpoint.Endpoint, *halfOpen]
}

// unverified is the session that a ClientKeyExchange implies, which only a Finished authenticates.
type unverified struct {
	id         proto.AllocationID
	keys       secrets
	transcript []byte // the hash of the transcript up to the ClientKeyExchange
}

func (h *halfOpen) matches(c *hello, seq uint16) bool {
	return h.seq == seq && bytes.Equal(h.client[:], c.random)
}

func (h *halfOpen) isExchangeComplete() bool { return len(h.exchange) > 0 && h.missing == 0 }

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

// admit counts a handshake with a cookie. At a limit it evicts the oldest of the prefix
// or of this worker, those without a cookie first: an honest one is finished within two
// round trips, so no source can block others for handshakeTimeout.
func (w *worker) admit(prefix endpoint.Endpoint) bool {
	if w.prefixes.Count(prefix) >= w.r.conf.halfOpenPerPrefix {
		w.evict(w.prefixes.FirstOf(prefix).Value)
	}
	if w.r.halfOpen.Add(1) <= int64(w.r.conf.halfOpen) {
		return true
	}
	if oldest := w.oldest(); oldest != nil {
		w.evict(oldest)
		return true
	}
	w.r.halfOpen.Add(-1)
	return false
}

// admitDirect leaves half of the handshakes of the prefix to clients with a cookie.
func (w *worker) admitDirect(prefix endpoint.Endpoint) bool {
	if w.prefixes.Count(prefix) >= w.r.conf.halfOpenPerPrefix/2 {
		return false
	}
	if w.r.direct.Add(1) <= int64(w.r.conf.direct) && w.r.limits.takeDirect(prefix, w.r.now()) {
		if w.r.halfOpen.Add(1) <= int64(w.r.conf.halfOpen) {
			return true
		}
		w.r.halfOpen.Add(-1)
	}
	w.r.direct.Add(-1)
	return false
}

func (w *worker) evict(h *halfOpen) {
	w.remove(h)
	w.count(eventEvicted)
}

// oldest returns nil if there is no handshake.
func (w *worker) oldest() *halfOpen {
	if oldest := w.byAge.Front(); oldest != nil {
		return oldest.Value.(*halfOpen)
	}
	return nil
}

func (w *worker) add(h *halfOpen) {
	w.handshakes[h.from] = h
	h.at = w.byAge.PushBack(h)
	class := evict.Low
	if h.validated {
		class = evict.High
	}
	h.item = w.prefixes.Add(h.from.Network(), class, h)
}

func (w *worker) remove(h *halfOpen) {
	w.byAge.Remove(h.at)
	delete(w.handshakes, h.from)
	w.prefixes.Remove(h.item)
	if !h.validated {
		w.r.direct.Add(-1)
	}
	w.r.halfOpen.Add(-1)
}

func (w *worker) expire(now int64) {
	for h := w.oldest(); h != nil && now >= h.deadline; h = w.oldest() {
		w.remove(h)
		w.count(eventTimedOut)
	}
}

const (
	cookieLen = 16
	// cookieSlot is the length of a time slot. A cookie is valid in its slot and the next.
	cookieSlot = 32 * time.Second
)

// cookies validate the address of a source, without state per cookie. A worker owns them.
type cookies struct {
	mac hash.Hash
	in  []byte
	sum []byte
}

func newCookies() cookies {
	secret := make([]byte, sha256.Size)
	rand.Read(secret)
	return cookies{mac: hmac.New(sha256.New, secret)}
}

// make returns a cookie, which the next call of any method overwrites.
func (c *cookies) make(from endpoint.Endpoint, h *hello, now time.Time) []byte {
	return c.sign(from, h, slot(now))
}

func (c *cookies) isValid(from endpoint.Endpoint, h *hello, now time.Time) bool {
	if len(h.cookie) != cookieLen {
		return false
	}
	s := slot(now)
	return hmac.Equal(h.cookie, c.sign(from, h, s)) || hmac.Equal(h.cookie, c.sign(from, h, s-1))
}

func slot(now time.Time) uint64 { return uint64(now.UnixNano() / int64(cookieSlot)) }

// sign returns the MAC over the source and all of the hello except the cookie and
// the extensions (RFC 6347 4.2.1).
func (c *cookies) sign(from endpoint.Endpoint, h *hello, slot uint64) []byte {
	c.in = c.in[:0]
	for _, word := range [...]uint64{slot, from.Hi, from.Lo, from.Tail} {
		c.in = binary.BigEndian.AppendUint64(c.in, word)
	}
	c.in = append(append(c.in, h.before...), h.after...)
	c.mac.Reset()
	c.mac.Write(c.in)
	c.sum = c.mac.Sum(c.sum[:0])
	return c.sum[:cookieLen]
}
