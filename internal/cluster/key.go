package cluster

import (
	"crypto/rand"
	"encoding/hex"
)

// keyLen is the size of an idempotency key: 128 random bits, so that no two
// calls have one and nobody can name another's.
const keyLen = 16

// key names one attempt at a reservation.
type key [keyLen]byte

func newKey() (k key) {
	_, _ = rand.Read(k[:]) // never fails (crypto/rand)
	return k
}

// String returns 32 hexadecimal digits.
func (k key) String() string { return hex.EncodeToString(k[:]) }

// parseKey reads what String returns, and nothing else.
func parseKey(s string) (k key, ok bool) {
	ok = parseHex(s, k[:])
	return k, ok
}

// parseHex fills to from lower-case hexadecimal digits, twice as many.
func parseHex(s string, to []byte) bool {
	if len(s) != 2*len(to) {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	_, err := hex.Decode(to, []byte(s))
	return err == nil
}
