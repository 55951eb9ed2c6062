package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// Sealed connection data is always 255 bytes. Integers are big-endian; the
// header is the additional data of the AES-256-GCM that seals the body.
//
//	header                       body, encrypted
//	  0   1  version (1)            0  16  relay id
//	  1   2  epoch                 16   8  boot id
//	  3  12  random nonce          24   1  role
//	body                           25   2  maximum of connections
//	 15 224  ciphertext            27   1  flags: 1, Individual; 2, PlayerNameCut; 4, Tag
//	                               28   7  issued, Unix seconds
//	239  16  tag                   35  16  allocation id
//	                               51  16  match id (the host's)
//	                               67  16  joiner's id (tickets only)
//	                               83   8  tenant hash
//	                               91  16  player hash
//	                              107   1  length of project
//	                              108   1  length of environment
//	                              109  56  project, padded
//	                              165  56  environment, padded
//	                              221   3  network tag of the API's caller
//
// The padding of both names holds the name of the player, or as much of its beginning as fits:
// that of the project first. A Tag takes its last 8 bytes, after a zero: a version without tags
// reads the name up to there.
const (
	sealVersion = 1

	epochAt   = 1
	nonceAt   = epochAt + 2
	nonceLen  = 12
	headerLen = nonceAt + nonceLen
	tagLen    = 16
	plainLen  = proto.MaxConnectionData - headerLen - tagLen

	relayAt       = 0
	bootAt        = relayAt + 16
	roleAt        = bootAt + 8
	maxAt         = roleAt + 1
	flagsAt       = maxAt + 2
	idAt          = flagsAt + 8
	matchAt       = idAt + len(proto.AllocationID{})
	joinerAt      = matchAt + len(proto.AllocationID{})
	tenantAt      = joinerAt + len(proto.AllocationID{})
	playerAt      = tenantAt + 8
	projectLenAt  = playerAt + 16
	environLenAt  = projectLenAt + 1
	projectAt     = environLenAt + 1
	environmentAt = projectAt + alloc.MaxTenantName
	networkAt     = environmentAt + alloc.MaxTenantName
)

// A version without flags reads them as a part of issued, which none uses.
const (
	flagIndividual = 1 << iota
	flagPlayerNameCut
	flagTag
)

// The layout fills 255 bytes: otherwise one of these does not compile.
var (
	_ [plainLen - 224]byte
	_ [224 - plainLen]byte
	_ [plainLen - networkAt - len(NetworkTag{})]byte
	_ [networkAt + len(NetworkTag{}) - plainLen]byte
)

// RoleTicket is the role of the host connection data that a joiner receives, and of no allocation.
const RoleTicket = alloc.RoleJoiner + 1

// Ids that do not fit the role, and a tag beside which the names of the tenant do not fit.
var (
	errClaims = errors.New("engine: claims do not fit their role")
	errTag    = errors.New("alloc: project and environment of a reservation with a tag have at most 103 bytes together")
)

// Claims is the content of connection data. Its ids depend on the role:
//
//	RoleHost    ID and Match are the host's, Joiner is zero
//	RoleJoiner  ID is the joiner's, Match the host's, Joiner is zero
//	RoleTicket  ID and Match are the host's, Joiner is the joiner that holds it
type Claims struct {
	Epoch uint16        // epoch it was sealed in: the low bits of the hour at which that began
	Relay alloc.RelayID // relay that sealed it
	Boot  uint64        // run of that relay's process
	Role  alloc.Role

	ID     proto.AllocationID
	Match  proto.AllocationID
	Joiner proto.AllocationID

	Tenant uint64 // alloc.Tenant.Hash
	// Project and Environment hold at most MaxTenantName bytes each. In opened claims they alias
	// the Scratch.
	Project, Environment []byte

	MaxConnections uint16
	Issued         int64 // Unix seconds
	Player         alloc.PlayerHash
	// PlayerName has Player as its digest, and aliases the Scratch too. PlayerNameCut: it is the
	// beginning of a name that did not fit, and may be empty.
	PlayerName    []byte
	PlayerNameCut bool
	Individual    bool   // see alloc.Caller
	Tag           uint64 // see alloc.Caller
	// Network is that from which the player called the API, zero if it is not known. A BIND from
	// there comes from its owner: the call was over TCP.
	Network NetworkTag
}

// NetworkTag is a keyed hash, see [Deriver.NetworkTag], zero for an unknown network.
type NetworkTag [3]byte

func (c *Claims) validate() error {
	names := alloc.Tenant{Project: string(c.Project), Environment: string(c.Environment)}
	if err := names.Validate(); err != nil {
		return err
	}
	if c.ID.IsZero() || c.Match.IsZero() {
		return errClaims
	}
	if c.Tag != 0 && len(c.Project)+len(c.Environment) > maxTaggedNames {
		return errTag
	}
	ok := false
	switch c.Role {
	case alloc.RoleHost:
		ok = c.ID == c.Match && c.Joiner.IsZero()
	case alloc.RoleJoiner:
		ok = c.ID != c.Match && c.Joiner.IsZero()
	case RoleTicket:
		ok = c.ID == c.Match && !c.Joiner.IsZero() && c.Joiner != c.ID
	}
	if !ok {
		return errClaims
	}
	return nil
}

// The epoch is in the header. The claims are valid and p is zero.
func (c *Claims) encode(p *[plainLen]byte) {
	copy(p[relayAt:], c.Relay[:])
	binary.BigEndian.PutUint64(p[bootAt:], c.Boot)
	p[roleAt] = byte(c.Role)
	binary.BigEndian.PutUint16(p[maxAt:], c.MaxConnections)
	binary.BigEndian.PutUint64(p[flagsAt:], uint64(c.Issued))
	p[flagsAt] = 0
	if c.Individual {
		p[flagsAt] = flagIndividual
	}
	copy(p[idAt:], c.ID[:])
	copy(p[matchAt:], c.Match[:])
	copy(p[joinerAt:], c.Joiner[:])
	binary.BigEndian.PutUint64(p[tenantAt:], c.Tenant)
	copy(p[playerAt:], c.Player[:])
	p[projectLenAt] = byte(len(c.Project))
	p[environLenAt] = byte(len(c.Environment))
	copy(p[projectAt:], c.Project)
	copy(p[environmentAt:], c.Environment)
	copy(p[networkAt:], c.Network[:])
	a, b := padding(p, len(c.Project), len(c.Environment))
	room := len(a) + len(b)
	if c.Tag != 0 {
		p[flagsAt] |= flagTag
		room -= tagRoom
		for i := range 8 {
			*tagByte(a, b, i) = byte(c.Tag >> (8 * i))
		}
	}
	name, cut := cutName(c.PlayerName, min(room, maxPlayerName))
	if cut || c.PlayerNameCut {
		p[flagsAt] |= flagPlayerNameCut
	}
	copy(b, name[copy(a, name):])
}

// cutName ends at a NUL.
func cutName(name []byte, room int) (begin []byte, cut bool) {
	begin, _, cut = bytes.Cut(name, []byte{0})
	if len(begin) <= room {
		return begin, cut
	}
	for room > 0 && !utf8.RuneStart(begin[room]) {
		room--
	}
	return begin[:room], true
}

func padding(p *[plainLen]byte, project, environment int) (a, b []byte) {
	return p[projectAt+project : environmentAt], p[environmentAt+environment : networkAt]
}

// tagRoom is in bytes, with the zero before it.
const tagRoom = 9

const maxTaggedNames = 2*alloc.MaxTenantName - tagRoom

// A tag takes the last 8 bytes of a and b together, the last byte first.
func tagByte(a, b []byte, i int) *byte {
	if i < len(b) {
		return &b[len(b)-1-i]
	}
	return &a[len(a)-1-(i-len(b))]
}

// maxPlayerName: decode moves the name to the front.
const maxPlayerName = projectAt

// decode reports false for lengths that encode never writes, as another version may.
func (c *Claims) decode(p *[plainLen]byte) bool {
	project, environment := int(p[projectLenAt]), int(p[environLenAt])
	if project > alloc.MaxTenantName || environment > alloc.MaxTenantName {
		return false
	}
	copy(c.Relay[:], p[relayAt:])
	c.Boot = binary.BigEndian.Uint64(p[bootAt:])
	c.Role = alloc.Role(p[roleAt])
	c.MaxConnections = binary.BigEndian.Uint16(p[maxAt:])
	c.Individual = p[flagsAt]&flagIndividual != 0
	c.PlayerNameCut = p[flagsAt]&flagPlayerNameCut != 0
	c.Issued = int64(binary.BigEndian.Uint64(p[flagsAt:]) & (1<<56 - 1))
	copy(c.ID[:], p[idAt:])
	copy(c.Match[:], p[matchAt:])
	copy(c.Joiner[:], p[joinerAt:])
	c.Tenant = binary.BigEndian.Uint64(p[tenantAt:])
	copy(c.Player[:], p[playerAt:])
	c.Project = p[projectAt : projectAt+project : projectAt+project]
	c.Environment = p[environmentAt : environmentAt+environment : environmentAt+environment]
	copy(c.Network[:], p[networkAt:])
	a, b := padding(p, project, environment)
	c.Tag = 0
	if p[flagsAt]&flagTag != 0 && len(a)+len(b) >= tagRoom {
		for i := range 8 {
			c.Tag |= uint64(*tagByte(a, b, i)) << (8 * i)
		}
		if len(b) >= 8 {
			b = b[:len(b)-8]
		} else {
			a, b = a[:len(a)+len(b)-8], nil
		}
	}
	n := copy(p[:maxPlayerName], a)
	n += copy(p[n:maxPlayerName], b)
	c.PlayerName, _, _ = bytes.Cut(p[:n], []byte{0})
	return true
}
