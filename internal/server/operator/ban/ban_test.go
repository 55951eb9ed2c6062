package ban

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func prefix(text string, d time.Duration) operator.Ban {
	return operator.Ban{ID: NewID(), Prefix: netip.MustParsePrefix(text), Since: start, Until: start.Add(d)}
}

func player(name string, d time.Duration) operator.Ban {
	return operator.Ban{ID: NewID(), Player: name, Project: "game", Environment: "live", Since: start, Until: start.Add(d)}
}

func TestNewID(t *testing.T) {
	seen := make(map[string]bool)
	for range 300_000 { // Of so many ids of 32 bits about 10 would be equal.
		id := NewID()
		if seen[id] {
			t.Fatalf("%s is the id of two bans", id)
		}
		seen[id] = true
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		in   operator.Ban
		want string // of the prefix, or a part of the error
	}{
		{prefix("192.0.2.7/24", time.Hour), "192.0.2.0/24"},
		{prefix("2001:db8::7/128", time.Hour), "2001:db8::/56"},
		{prefix("2001:db8::/32", time.Hour), "2001:db8::/32"},
		{prefix("::ffff:192.0.2.7/128", time.Hour), "192.0.2.7/32"},
		{prefix("0.0.0.0/0", time.Hour), "larger than a /8"},
		{prefix("::/8", time.Hour), "larger than a /16"},
		{prefix("192.0.2.0/24", 0), "not within"},
		{prefix("192.0.2.0/24", 11*365*24*time.Hour), "not within"},
		{player("ann", time.Hour), "invalid Prefix"},
		{player("", time.Hour), "name a player or a prefix"},
		{player("a\nb", time.Hour), "printable"},
		{player(strings.Repeat("a", 257), time.Hour), "at most"},
		{operator.Ban{Player: "ann", Project: "game", Since: start, Until: start.Add(1)}, "needs the project and the environment"},
		{operator.Ban{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Project: "game", Since: start, Until: start.Add(1)}, "all projects"},
		{operator.Ban{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Player: "ann", Since: start, Until: start.Add(1)}, "not both"},
	} {
		b, err := Check(c.in)
		got := b.Prefix.String()
		if err != nil {
			got = err.Error()
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v does not wrap ErrInvalid", c.in, err)
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.in, got, c.want)
		}
	}
}

func TestRefuses(t *testing.T) {
	tenant := alloc.Tenant{Project: "game", Environment: "live"}
	longer := player("ann", 2*time.Hour)
	longer.Reason = "cheats"
	all := []operator.Ban{longer, player("ann", time.Hour), player("bob", time.Minute), prefix("192.0.2.0/24", time.Hour),
		prefix("2001:db8::/56", time.Hour)}
	l := NewList(all, start.Add(time.Minute))
	for _, c := range []struct {
		caller alloc.Caller
		want   string
	}{
		{alloc.Caller{Tenant: tenant, Player: "ann"}, "banned until 2026-11-23 14:00 UTC: cheats"},
		{alloc.Caller{Tenant: tenant, Player: "bob"}, ""}, // It has ended.
		{alloc.Caller{Tenant: alloc.Tenant{Project: "game", Environment: "test"}, Player: "ann"}, ""},
		{alloc.Caller{Tenant: tenant, Address: netip.MustParseAddr("192.0.2.9")}, "banned until 2026-11-23 13:00 UTC"},
		{alloc.Caller{Tenant: tenant, Address: netip.MustParseAddr("192.0.3.9")}, ""},
		{alloc.Caller{Tenant: tenant, Address: netip.MustParseAddr("2001:db8:0:7f::")}, "banned until"},
		{alloc.Caller{Tenant: tenant, Address: netip.MustParseAddr("192.0.2.9"), Server: true}, ""},
		{alloc.Caller{Tenant: tenant, Player: "ann", Individual: true, Server: true}, "banned until"}, // named by a backend
		{alloc.Caller{Tenant: tenant, Player: "ann", Server: true}, ""},                               // the backend itself
		{alloc.Caller{Tenant: tenant}, ""},
	} {
		err := l.Refuses(c.caller)
		var denied alloc.RefusedError
		if (err == nil) != (c.want == "") || err != nil && (!errors.As(err, &denied) || !strings.HasPrefix(denied.Reason, c.want)) {
			t.Errorf("%+v: %v, want %q", c.caller, err, c.want)
		}
	}
	if len(l.All()) != 4 || len(l.Prefixes()) != 2 {
		t.Errorf("the list has %v", l.All())
	}
	var none *List
	if none.Refuses(alloc.Caller{Player: "ann"}) != nil || none.Refuses(alloc.Caller{Address: netip.MustParseAddr("192.0.2.9")}) != nil ||
		none.All() != nil {
		t.Error("a nil list bans somebody")
	}
}
