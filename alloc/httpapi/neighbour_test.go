package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// shared is an address that an attacker and honest players have in common.
const shared = "198.51.100.1"

// regionsFrom returns the status of a cheap call.
func regionsFrom(x *fixture, addr, token string) int {
	r := regionsOf(token)()
	r.RemoteAddr = addr + ":4000"
	return x.do(r).Code
}

// underAttack sends, for a minute of the fixture's clock, perSecond requests of attack
// and one honest request a second, and returns how many honest requests succeeded.
func underAttack(x *fixture, perSecond int, attack, honest func(i int) int) (served, asked int) {
	for second := range 60 {
		for i := range perSecond {
			attack(second*perSecond + i)
		}
		asked++
		if honest(second) == http.StatusOK {
			served++
		}
		x.clock.Advance(time.Second)
	}
	return served, asked
}

func TestNeighboursOfAnAttacker(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(i int) string{
		"no token":            func(int) string { return "" },
		"unknown tokens":      func(i int) string { return fmt.Sprint("junk", i) },
		"an expired token":    func(int) string { return "expired" },
		"many valid accounts": func(i int) string { return fmt.Sprint("carl", i%40) },
	} {
		for honest, token := range map[string]func(i int) string{
			"static token":      func(int) string { return tokenAnna },
			"known JWT":         func(int) string { return "bert" },
			"a new JWT a login": func(i int) string { return fmt.Sprint("carl new ", i) },
		} {
			x := newFixture(t, Config{Authenticate: known})
			regionsFrom(x, "203.0.113.1", "bert")
			served, asked := underAttack(x, 50,
				func(i int) int { return regionsFrom(x, shared, attack(i)) },
				func(i int) int { return regionsFrom(x, shared, token(i)) })
			if served != asked {
				t.Errorf("%s: %s: %d of %d honest requests were served", name, honest, served, asked)
			}
		}
	}
}

// TestNeighbourWithAnExpiredToken: it learns that it needs a new one.
func TestNeighbourWithAnExpiredToken(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Authenticate: known})
	for i := range 500 {
		regionsFrom(x, shared, fmt.Sprint("junk", i))
	}
	if got := regionsFrom(x, shared, "expired"); got != 401 {
		t.Errorf("status %d, want 401", got)
	}
}

func TestTokenChecksAreLimited(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		token func(i int) string
		most  int
	}{
		"rejected":  {func(i int) string { return fmt.Sprint("junk", i) }, defaultAddressPerMinute + spareTokenChecks},
		"expired":   {func(int) string { return "expired" }, defaultAddressPerMinute + spareTokenChecks},
		"one valid": {func(int) string { return "carl" }, 8*defaultPlayerPerMinute + 1},
	} {
		checked := 0
		x := newFixture(t, Config{Authenticate: func(ctx context.Context, token string) (alloc.Caller, error) {
			checked++
			return known(ctx, token)
		}})
		for i := range 20_000 {
			regionsFrom(x, shared, c.token(i))
		}
		if checked > c.most {
			t.Errorf("%s: %d of 20000 tokens were checked at once, want at most %d", name, checked, c.most)
		}
	}
}

// TestKnownTokenThatExpires: a token that was valid loses its priority with its validity.
func TestKnownTokenThatExpires(t *testing.T) {
	t.Parallel()
	valid, checked := true, 0
	x := newFixture(t, Config{Authenticate: func(ctx context.Context, token string) (alloc.Caller, error) {
		if token == "once" {
			checked++
			if !valid {
				return alloc.Caller{}, ErrTokenExpired
			}
			return known(ctx, "bert")
		}
		return known(ctx, token)
	}})
	if got := regionsFrom(x, shared, "once"); got != 200 {
		t.Fatalf("valid: status %d", got)
	}
	valid = false
	if got := regionsFrom(x, shared, "once"); got != 401 {
		t.Errorf("expired: status %d", got)
	}
	for i := range 2 * (defaultAddressPerMinute + spareTokenChecks) {
		regionsFrom(x, shared, fmt.Sprint("junk", i))
	}
	before := checked
	if got := regionsFrom(x, shared, "once"); got != 429 || checked != before {
		t.Errorf("beyond the limit of its address: status %d, checked %v", got, checked != before)
	}
}

func TestGuessersOfAnotherTenant(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{Authenticate: func(ctx context.Context, token string) (alloc.Caller, error) {
		identity, err := known(ctx, token)
		identity.Tenant.Project = "attacker"
		return identity, err
	}})
	code := x.code(t, tokenAnna, x.allocate(t, tokenAnna))
	served, asked := underAttack(x, 20,
		func(i int) int { return x.do(joinFrom(shared, fmt.Sprint("carl", i%40), wrongCode)).Code },
		func(i int) int {
			return x.do(joinFrom(shared, []string{tokenAnna, tokenBert, tokenServer}[i%3], code)).Code
		})
	if served != asked {
		t.Errorf("%d of %d joins of another tenant were served", served, asked)
	}
}

func TestOneGuesserOfATenant(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	code := x.code(t, tokenAnna, x.allocate(t, tokenAnna))
	served, asked := underAttack(x, 20,
		func(int) int { return x.do(joinFrom(shared, tokenBert, wrongCode)).Code },
		func(int) int { return x.do(joinFrom(shared, tokenAnna, code)).Code })
	if served != asked {
		t.Errorf("%d of %d joins were served", served, asked)
	}
}

// TestGuessesOfATenant: from one address with any number of accounts, by one player, and
// by 60 players with an address each, fewer guesses at a tenant's join codes are checked
// than the rate at which they last 28 days (see alloc.ServiceConfig.FailuresPerSecond).
func TestGuessesOfATenant(t *testing.T) {
	t.Parallel()
	const minutes = 10
	for name, c := range map[string]struct {
		from      func(i int) (addr, token string)
		perMinute float64
	}{
		"one player":        {func(i int) (string, string) { return fmt.Sprint("198.51.100.", i%200), "carl" }, 10},
		"one address":       {func(i int) (string, string) { return shared, fmt.Sprint("carl", i) }, 40},
		"fifteen addresses": {func(i int) (string, string) { return fmt.Sprint("198.51.100.", i%15), fmt.Sprint("carl", i%600) }, 600},
		"sixty players":     {func(i int) (string, string) { return fmt.Sprint("198.51.100.", i%60), fmt.Sprint("carl", i%60) }, 600},
	} {
		x := newFixture(t, Config{Authenticate: known})
		guesses := 0.0
		for i := range minutes * 60 * 20 {
			addr, token := c.from(i)
			if x.do(joinFrom(addr, token, wrongCode)).Code == http.StatusNotFound {
				guesses++
			}
			x.clock.Advance(time.Second / 20)
		}
		if got := guesses / (minutes + 1); got > c.perMinute || got < 0.9*c.perMinute { // the first minute has a burst
			t.Errorf("%s: %.1f guesses a minute, want %v", name, got, c.perMinute)
		}
		if c.perMinute > 60*10 {
			t.Errorf("%s: %v guesses a minute are permitted", name, c.perMinute)
		}
	}
}
