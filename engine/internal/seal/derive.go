package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net/netip"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// sealingKey derives an AES-256-GCM key. The relay's id is the salt, so relays that share a master
// key by mistake still cannot open each other's connection data.
func sealingKey(k alloc.MasterKey, relay alloc.RelayID, epoch uint16) (cipher.AEAD, error) {
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

// The key of an allocation is the first block of HKDF-SHA512 (RFC 5869): the salt extracts, and
// the info is the prefix and the id.
const (
	deriverSalt = "ferry allocation key v1"
	deriverInfo = "ferry allocation "
	networkInfo = "ferry network "
)

// Deriver computes the keys of allocations, so that none is stored. It belongs to one goroutine.
type Deriver struct {
	mac     hash.Hash
	in      [len(deriverInfo) + len(proto.AllocationID{}) + 1]byte // info, id, HKDF's block number
	network [len(networkInfo) + 16]byte                            // info, network
	out     [len(proto.Key{})]byte
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

// Key is one HMAC-SHA512 over 34 bytes, without allocating.
func (d *Deriver) Key(id proto.AllocationID, key *proto.Key) {
	copy(d.in[len(deriverInfo):], id[:])
	d.mac.Reset()
	d.mac.Write(d.in[:])
	d.mac.Sum(d.out[:0])
	*key = d.out
	clear(d.out[:]) // printing a Deriver shows no key
}

// NetworkTag returns the tag of an IPv4 address, or of the first 56 bits of an IPv6 address,
// without allocating. It is keyed, so that a player cannot find another network with the tag of
// its own. The tag of the invalid address is zero, every other one is not.
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
