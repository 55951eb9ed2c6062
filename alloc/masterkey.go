package alloc

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/netip"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/proto"
)

// MasterKeyLen is the size in bytes of a master key.
const MasterKeyLen = 32

// redacted is printed in place of every secret.
const redacted = "[redacted]"

// MasterKey is the one secret of a relay: the sealing keys of all epochs and
// the keys of all its allocations are derived from it. It prints as
// "[redacted]" in every format; to store it, write its bytes.
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
// relay's id is the salt, so relays that share a master key by mistake still
// cannot open each other's connection data.
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

// RelayID identifies a relay for as long as it keeps its master key. It is a
// random UUID that the relay stores next to the key.
type RelayID [16]byte

// NewRelayID returns a random id.
func NewRelayID() (RelayID, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return RelayID{}, fmt.Errorf("alloc: new relay id: %w", err)
	}
	return RelayID(id), nil
}

// ParseRelayID returns the id whose text [RelayID.String] returns; letters may be
// in either case. Its error is proto.ErrIDText.
func ParseRelayID(text string) (RelayID, error) {
	id, err := proto.ParseAllocationID(text)
	return RelayID(id), err
}

// IsZero reports whether the id was never set.
func (r RelayID) IsZero() bool { return r == RelayID{} }

// String returns the id as lower-case UUID text.
func (r RelayID) String() string { return proto.AllocationID(r).String() }

// The key of an allocation is the first block of HKDF-SHA512 (RFC 5869): the
// salt below extracts, and the info is the prefix below and the id.
const (
	deriverSalt = "ferry allocation key v1"
	deriverInfo = "ferry allocation "
	networkInfo = "ferry network "
)

// Deriver computes the keys of allocations from the master key, so that no key is
// stored. It belongs to one goroutine.
type Deriver struct {
	mac     hash.Hash
	in      [len(deriverInfo) + proto.IDLen + 1]byte // info, id, HKDF's block number
	network [len(networkInfo) + 16]byte              // info, network
	out     [proto.KeyLen]byte
}

// NewDeriver returns a deriver of this relay's keys.
func (s *Sealer) NewDeriver() *Deriver {
	d := &Deriver{mac: s.newMAC()}
	copy(d.in[:], deriverInfo)
	d.in[len(d.in)-1] = 1
	copy(d.network[:], networkInfo)
	d.mac.Reset() // the first Reset makes the HMAC cache its padded key
	return d
}

// Key writes the 64-byte key of allocation id to key: one HMAC-SHA512 over 34
// bytes, without allocating.
func (d *Deriver) Key(id proto.AllocationID, key *proto.Key) {
	copy(d.in[len(deriverInfo):], id[:])
	d.mac.Reset()
	d.mac.Write(d.in[:])
	d.mac.Sum(d.out[:0])
	*key = d.out
	clear(d.out[:]) // printing a Deriver shows no key
}

// NetworkTag returns the tag of the network of an address, without allocating: that of
// an IPv4 address, or of the first 56 bits of an IPv6 address. It is keyed, so that a
// player cannot find another network with the tag of its own. The tag of the invalid
// address is zero, every other one is not.
func (d *Deriver) NetworkTag(addr netip.Addr) (tag NetworkTag) {
	if !addr.IsValid() {
		return tag
	}
	network := addr.As16()
	if !addr.Unmap().Is4() {
		clear(network[7:])
	}
	copy(d.network[len(networkInfo):], network[:])
	d.mac.Reset()
	d.mac.Write(d.network[:])
	d.mac.Sum(d.out[:0])
	copy(tag[:], d.out[:])
	if tag == (NetworkTag{}) {
		tag[0] = 1
	}
	clear(d.out[:])
	return tag
}
