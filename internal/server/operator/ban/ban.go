// Package ban knows which players and networks the operator has banned, and until when.
package ban

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

const (
	// Max is how many bans there may be at once: enough for people, and small enough for
	// every process to read all of them each few seconds.
	Max = 10_000
	// MaxFor is the longest ban: ten years.
	MaxFor = 10 * 365 * 24 * time.Hour
	// maxText bounds the name of a player and a reason in bytes.
	maxText = 256
	// bits4 and bits6 are the shortest prefixes, so that a typing error does not ban a
	// country, and host6 the longest of IPv6: a household has a /56.
	bits4, bits6, host6 = 8, 16, 56
)

// ErrInvalid is wrapped by the errors of Check.
var ErrInvalid = errors.New("ban")

// NewID returns the id of a new ban: 16 hexadecimal digits, so that no two of Max bans have the same, which
// processes and stores that do not see each other cannot check.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Check returns the ban as it is applied: a prefix is masked, and an IPv6 prefix longer than
// /56 becomes its /56. Errors wrap ErrInvalid.
func Check(b operator.Ban) (operator.Ban, error) {
	fits := func(text string) bool { return len(text) <= maxText && printable.IsLine(text) }
	d := b.Until.Sub(b.Since)
	switch {
	case !fits(b.Player) || !fits(b.Reason):
		return b, fmt.Errorf("%w: a player or a reason has at most %d bytes, all printable", ErrInvalid, maxText)
	case d <= 0 || d > MaxFor:
		return b, fmt.Errorf("%w: %v is not within 1s and 10 years", ErrInvalid, d)
	case (b.Player != "") == b.Prefix.IsValid():
		return b, fmt.Errorf("%w: name a player or a prefix, not both", ErrInvalid)
	case b.Player != "":
		if b.Project == "" || b.Environment == "" {
			return b, fmt.Errorf("%w: a player needs the project and the environment", ErrInvalid)
		}
		if err := tenant(&b).Validate(); err != nil {
			return b, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return b, nil
	case b.Project != "" || b.Environment != "":
		return b, fmt.Errorf("%w: a prefix is banned for all projects", ErrInvalid)
	}
	b.Prefix = Network(b.Prefix)
	shortest := bits6
	if b.Prefix.Addr().Is4() {
		shortest = bits4
	}
	if b.Prefix.Bits() < shortest {
		return b, fmt.Errorf("%w: %v is larger than a /%d", ErrInvalid, b.Prefix, shortest)
	}
	return b, nil
}

// Network returns the network for which a prefix stands: IPv4-mapped ones are IPv4, and an IPv6
// prefix longer than /56 is its /56.
func Network(p netip.Prefix) netip.Prefix {
	p = endpoint.UnmapPrefix(p)
	if p.Addr().Is6() && p.Bits() > host6 {
		p = netip.PrefixFrom(p.Addr(), host6)
	}
	return p.Masked()
}

// Covers reports whether other is a ban of the same player, or of the same network or of one
// inside it.
func Covers(b, other *operator.Ban) bool {
	if b.Player != "" {
		return b.Player == other.Player && tenant(b) == tenant(other)
	}
	return other.Prefix.IsValid() && b.Prefix.Bits() <= other.Prefix.Bits() && b.Prefix.Contains(other.Prefix.Addr())
}

func tenant(b *operator.Ban) alloc.Tenant {
	return alloc.Tenant{Project: b.Project, Environment: b.Environment}
}

// Hash is the player as a relay knows it.
func Hash(b *operator.Ban) alloc.PlayerHash { return alloc.HashPlayer(tenant(b), b.Player) }

// List is a set of bans. It does not change. A nil list is empty.
type List struct {
	all      []operator.Ban // those that end first come first
	players  map[alloc.PlayerHash]int
	prefixes *endpoint.PrefixSet
}

// NewList returns the list of those bans that have not ended. Of two of the same player the
// longer one counts.
func NewList(all []operator.Ban, now time.Time) *List {
	l := &List{players: map[alloc.PlayerHash]int{}}
	for _, b := range all {
		if now.Before(b.Until) {
			l.all = append(l.all, b)
		}
	}
	slices.SortFunc(l.all, func(a, b operator.Ban) int { return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID)) })
	for i := range l.all {
		if b := &l.all[i]; b.Player != "" {
			l.players[Hash(b)] = i
		}
	}
	l.prefixes = endpoint.NewPrefixSet(l.Prefixes())
	return l
}

// All returns the bans, those that end first first. The caller must not change it.
func (l *List) All() []operator.Ban {
	if l == nil {
		return nil
	}
	return l.all
}

// Prefixes returns the banned networks.
func (l *List) Prefixes() (all []netip.Prefix) {
	for _, b := range l.All() {
		if b.Prefix.IsValid() {
			all = append(all, b.Prefix)
		}
	}
	return all
}

// BanOf returns the id of the ban of a player, and whether there is one.
func (l *List) BanOf(p alloc.PlayerHash) (id string, banned bool) {
	if l == nil {
		return "", false
	}
	i, banned := l.players[p]
	if banned {
		id = l.all[i].ID
	}
	return id, banned
}

// Refuses returns an alloc.ErrDenied for a banned caller, else nil. A backend calls for its
// players: its own address and name do not matter, but the player that it names does.
func (l *List) Refuses(c alloc.Caller) error {
	if l == nil {
		return nil
	}
	if c.Player != "" && (c.Individual || !c.Server) {
		if i, ok := l.players[alloc.HashPlayer(c.Tenant, c.Player)]; ok {
			return denied(&l.all[i])
		}
	}
	if c.Server || !l.prefixes.Contains(c.Address) {
		return nil
	}
	// The last one ends last.
	for i := range slices.Backward(l.all) {
		if b := &l.all[i]; b.Prefix.IsValid() && b.Prefix.Contains(c.Address.Unmap()) {
			return denied(b)
		}
	}
	return nil
}

func denied(b *operator.Ban) error {
	text := "banned until " + b.Until.UTC().Format("2006-01-02 15:04 MST")
	if b.Reason != "" {
		text += ": " + b.Reason
	}
	return alloc.RefusedError{Err: alloc.ErrDenied, Reason: text}
}
