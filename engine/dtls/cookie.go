package dtls

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

const (
	cookieLen = 16
	// cookieSlot: a cookie is good in the slot of time in which it was made and
	// in the next one.
	cookieSlot = 32 * time.Second
)

// cookies makes and checks cookies, which prove that a source hears what is sent
// to it, and remembers nothing of them. A worker owns it.
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

// make returns the cookie for a hello from a source; it is good until the next
// call.
func (c *cookies) make(from endpoint.Endpoint, h *hello, now time.Time) []byte {
	return c.sign(from, h, slot(now))
}

// valid reports whether the cookie in a hello is ours, for this source and this
// hello, and not too old.
func (c *cookies) valid(from endpoint.Endpoint, h *hello, now time.Time) bool {
	if len(h.cookie) != cookieLen {
		return false
	}
	s := slot(now)
	return hmac.Equal(h.cookie, c.sign(from, h, s)) || hmac.Equal(h.cookie, c.sign(from, h, s-1))
}

func slot(now time.Time) uint64 { return uint64(now.UnixNano() / int64(cookieSlot)) }

// sign covers the source and all of the hello but the cookie and the extensions
// (RFC 6347 4.2.1).
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
