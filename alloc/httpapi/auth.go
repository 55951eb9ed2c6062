package httpapi

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
)

// devTenant is the tenant of anonymous callers.
func devTenant() alloc.Tenant { return alloc.Tenant{Project: "dev", Environment: "dev"} }

// principal is who is calling.
type principal struct {
	// name is what requests are counted under. Names of tokens and of
	// addresses begin differently, so that they never meet.
	name      string
	tenant    alloc.Tenant
	player    string
	kind      Kind
	anonymous bool
}

// caller returns the principal as the service knows it. An anonymous caller
// cannot prove that it made an allocation, so it may name any of its tenant's
// where ownership counts.
func (p principal) caller(c callName) alloc.Caller {
	server := p.kind == KindServer || (p.anonymous && c == callJoinCode)
	return alloc.Caller{Tenant: p.tenant, Player: p.player, Server: server}
}

// digest is how a secret is kept and looked up: the time of a look-up tells
// something about digests, which nobody can choose, and nothing about secrets.
type digest [sha256.Size]byte

// tokenTable finds the principal of a secret. It does not change after
// newTokenTable.
type tokenTable map[digest]principal

func newTokenTable(tokens []Token) (tokenTable, error) {
	table := make(tokenTable, len(tokens))
	for i, t := range tokens {
		if err := t.validate(); err != nil {
			return nil, fmt.Errorf("httpapi: token %d: %w", i, err)
		}
		key := digest(sha256.Sum256([]byte(t.Secret)))
		if _, ok := table[key]; ok {
			return nil, fmt.Errorf("httpapi: token %d: %w", i, ErrDuplicate)
		}
		name := []string{"token", t.Kind.String(), t.Project, t.Environment, t.player()}
		table[key] = principal{
			name:   strings.Join(name, "\x00"),
			tenant: t.tenant(),
			player: t.player(),
			kind:   t.Kind,
		}
	}
	return table, nil
}

// find returns the principal of the token in the header.
func (t tokenTable) find(h http.Header) (principal, bool) {
	secret, ok := bearer(h)
	if !ok {
		return principal{}, false
	}
	p, ok := t[digest(sha256.Sum256([]byte(secret)))]
	return p, ok
}

// bearer returns the token of the only Authorization header (RFC 6750, 2.1).
func bearer(h http.Header) (string, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	if !ok || token == "" || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return token, true
}

// anonymousFrom returns a player that has never called before, counted under
// its address.
func anonymousFrom(address netip.Prefix) principal {
	return principal{
		name:      "address\x00" + address.String(),
		tenant:    devTenant(),
		player:    "anonymous-" + uuid.NewString(),
		kind:      KindPlayer,
		anonymous: true,
	}
}
