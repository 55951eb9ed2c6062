package alloc

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"

	"github.com/ferryrelay/ferry/proto"
)

// MasterKeyLen is the size in bytes of a master key.
const MasterKeyLen = 32

// redacted is what every secret prints as.
const redacted = "[redacted]"

// MasterKey is the one secret of a relay: the sealing keys of all epochs and
// the keys of all its allocations are derived from it. It prints as
// "[redacted]" in every format; whoever stores it writes its bytes.
type MasterKey [MasterKeyLen]byte

// NewMasterKey reads a fresh key from random; nil means crypto/rand.
func NewMasterKey(random io.Reader) (MasterKey, error) {
	if random == nil {
		random = rand.Reader
	}
	var k MasterKey
	if _, err := io.ReadFull(random, k[:]); err != nil {
		return MasterKey{}, fmt.Errorf("alloc: new master key: %w", err)
	}
	return k, nil
}

// IsZero reports whether the key was never set.
func (k MasterKey) IsZero() bool { return k == MasterKey{} }

// String returns "[redacted]".
func (k MasterKey) String() string { return redacted }

// GoString returns "[redacted]".
func (k MasterKey) GoString() string { return redacted }

// Format writes "[redacted]" whatever the verb, %x and %d included.
func (k MasterKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue returns "[redacted]".
func (k MasterKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[redacted]", so that JSON and YAML show no key either.
func (k MasterKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// sealingKey derives the AES-256-GCM key with which relay seals in epoch. The
// relay's id is the salt: relays that share a master key by mistake still
// cannot open one another's connection data.
func (k MasterKey) sealingKey(relay RelayID, epoch uint16) (cipher.AEAD, error) {
	info := binary.BigEndian.AppendUint16([]byte("ferry connection data v1 "), epoch)
	key, err := hkdf.Key(sha256.New, k[:], relay[:], string(info), 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// RelayID names a relay for as long as its master key lives. It is a random
// UUID that the relay keeps next to the key.
type RelayID [16]byte

// IsZero reports whether the id was never set.
func (r RelayID) IsZero() bool { return r == RelayID{} }

// String returns the id as lower-case UUID text.
func (r RelayID) String() string { return proto.AllocationID(r).String() }
