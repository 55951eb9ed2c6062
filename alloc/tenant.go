package alloc

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strings"
)

// MaxTenantName is the largest length in bytes of a project or environment name.
const MaxTenantName = 56

// Tenant is a project and one of its environments. Allocations of different
// tenants can never be linked.
type Tenant struct {
	Project     string
	Environment string
}

// Validate reports whether both names can be sealed.
func (t Tenant) Validate() error {
	for _, name := range []string{t.Project, t.Environment} {
		if len(name) > MaxTenantName || strings.IndexByte(name, 0) >= 0 {
			return ErrTenantName
		}
	}
	return nil
}

// Hash returns a 64-bit digest of both names, which the relay compares.
func (t Tenant) Hash() uint64 {
	sum := sha256.Sum256([]byte(t.Project + "\x00" + t.Environment))
	return binary.LittleEndian.Uint64(sum[:])
}

// String returns "project/environment".
func (t Tenant) String() string { return t.Project + "/" + t.Environment }

// PlayerHash is a digest of the player that an allocation was issued to, salted
// with its tenant. It decides ownership; names are for operators only.
type PlayerHash [16]byte

// HashPlayer returns the digest of player within tenant t.
func HashPlayer(t Tenant, player string) PlayerHash {
	sum := sha256.Sum256([]byte(t.Project + "\x00" + t.Environment + "\x00" + player))
	return PlayerHash(sum[:16])
}

type Caller struct {
	Tenant Tenant
	// Player is the player's name within the tenant. If it is empty, the request
	// counts as that of a new player, so that callers without a name own nothing
	// of each other.
	Player string
	// Individual says that Player is one player, not the holders of a token that many
	// share: the subject of an issuer's token, or the player that a backend names. Such a
	// player has limits at the relay, and at a full host the place of its own allocation that has
	// fallen silent.
	Individual bool
	// Tag is the program's own number for this reservation, zero for none. The events of the
	// allocation have it, also after a restart: it is sealed into the connection data.
	Tag uint64
	// Regions are the ids of the regions in which the caller may have hosts, the preferred one first, as far as
	// its tenant may: see ServiceConfig.AllowedRegions. Empty: all of the tenant's. A join and a host migration stay in
	// the region of the match.
	Regions []string
	// Server marks a backend, which may act for all hosts of its tenant.
	Server bool
	// Address is the caller's address or network, the zero address if it is not known, as for a
	// backend, which calls for players that are elsewhere. It helps a fleet to choose a relay, and
	// the relay to recognise the client's BIND, see engine.Limits.
	Address netip.Addr
}

// limitHolder returns by what the caller's unbound reservations count: a player, or the holders of a
// token that many share in one network, since no one of them shall use up those of the others.
func (c Caller) limitHolder(player PlayerHash) PlayerHash {
	if c.Individual || !c.Address.IsValid() {
		return player
	}
	bits := 56
	if c.Address.Unmap().Is4() {
		bits = 32
	}
	network, _ := c.Address.Unmap().Prefix(bits)
	return HashPlayer(c.Tenant, c.Player+"\x00"+network.String())
}

// owns reports whether the caller may act for the allocation that d describes,
// which belongs to the caller's tenant.
func (c Caller) owns(d Description) bool {
	if c.Server {
		return true
	}
	return c.Player != "" && d.Player == HashPlayer(c.Tenant, c.Player)
}
