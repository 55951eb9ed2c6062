package operator

import (
	"net/url"
	"reflect"
	"testing"
)

// TestQueries: what ferry ctl or an API process sends is what the page reads.
func TestQueries(t *testing.T) {
	allocations := AllocationsQuery{
		Host: "a b/c", Tenant: "00000000000000ff", Project: "p&q", Environment: "e", Match: "m", Role: "host", Bound: "false", Transport: "ws",
		Cursor: 7, Limit: 3,
	}
	roundTrip(t, ListPlayers, allocations, "/allocations/a%20b%2Fc/players?bound=false&cursor=7&environment=e&limit=3&match=m&project=p%26q"+
		"&role=host&tenant=00000000000000ff&transport=ws")
	roundTrip(t, ListAllocations, ListAllocations.Default, "/allocations?limit=100")
	roundTrip(t, ListMatches, MatchesQuery{Search: "x", Sort: "rate", Order: "desc", Offset: 9000, Limit: 1000},
		"/matches?limit=1000&offset=9000&order=desc&q=x&sort=rate")
	roundTrip(t, ListTimeline, TimelineQuery{Project: "p"}, "/timeline?limit=0&project=p")
	roundTrip(t, ListPlayerUsage, PlayersQuery{Project: "p", Environment: "e", Sort: "live", Top: 5},
		"/usage/players?environment=e&project=p&sort=live&top=5")
	roundTrip(t, ListWhy, NameQuery{"QX7KPD"}, "/why/QX7KPD")
	roundTrip(t, ListAffected, BanQuery{Prefix: "2001:db8::/48", For: "1h0m0s"}, "/bans/affected?for=1h0m0s&prefix=2001%3Adb8%3A%3A%2F48")
	roundTrip(t, ListNodes, NoQuery{}, "/nodes")
}

func roundTrip[Q, A any](t *testing.T, l *List[Q, A], q Q, target string) {
	t.Helper()
	if got := l.Target(q); got != target {
		t.Errorf("asks %s, want %s", got, target)
	}
	at, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	name := func(name string) string {
		for i, f := range fields(q) {
			if f.Tag.Get("path") == name {
				return reflect.ValueOf(q).Field(i).String()
			}
		}
		return ""
	}
	if got, err := l.Parse(at.Query(), name); err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("%s: reads %+v, %v, want %+v", target, got, err, q)
	}
}
