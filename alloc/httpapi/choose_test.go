package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
)

const choose = `{"maxConnections":4,"players":[{"player":"ann","regions":[{"region":"local","rtt":20},{"region":"far","rtt":90}]},` +
	`{"player":"bob","regions":[{"region":"local","rtt":150.25},{"region":"far","rtt":50,"loss":0.5}]}]}`

func TestChooseRegion(t *testing.T) {
	t.Parallel()
	x := newFixture(t, Config{})
	for _, c := range []struct{ body, region, reason string }{
		{choose, "far", "every player reaches it; worst 100 ms, mean 95 ms; next is local with worst 150.3 ms, mean 85.1 ms"},
		{`{"players":[{"regions":[{"region":"far","rtt":9}]},{"regions":[{"region":"moon","rtt":9}]}]}`, "far",
			"1 of 2 players reach it, and no region with room is reached by more; worst 9 ms, mean 9 ms; no player reaches local"},
		{`{"players":[{"regions":[]}]}`, "local",
			"no player has measured a region that has room: it is the first of the server's regions that has"},
	} {
		rec := x.post("/v1/regions/choose", tokenAnna, c.body)
		var out body[api.ChooseRegionData]
		if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil || out.Data.Region != c.region || out.Data.Reason != c.reason ||
			len(out.Data.Regions) != 2 {
			t.Errorf("%s: %d %s", c.body, rec.Code, rec.Body)
		}
		best := api.RegionScore{Region: "far", HasRoom: true, Players: 2, Worst: 100, Mean: 95, WorstPlayer: "bob"}
		if c.body == choose && out.Data.Regions[0] != best {
			t.Errorf("%+v", out.Data.Regions[0])
		}
	}
	measured := func(m string) string { return `{"players":[{"regions":[` + m + `]}]}` }
	for _, c := range []struct{ body, member, what string }{
		{`{}`, "players", "has 0 players, and must have 1 to 100"},
		{`{"players":[` + strings.Repeat(`{},`, 100) + `{}]}`, "players", "has more than 100 players"},
		{`{"players":[{},{"player":"` + strings.Repeat("x", 257) + `"}]}`, "players[1].player", "is longer than 256 bytes"},
		{measured(strings.Repeat(`{"region":"a"},`, 64) + `{"region":"a"}`), "players[0].regions", "has more than 64 measurements"},
		{`{"players":{}}`, "players", "has the wrong type"},
		{`{"players":[{"regions":1}]}`, "players[0].regions", "has the wrong type"},
		{`{"players":[1]}`, "players[0]", "has the wrong type"},
		{measured(`{"rtt":1}`), "players[0].regions[0].region", "is missing"},
		{measured(`{"region":"a"},{"region":"a"}`), "players[0].regions[1].region", "is there twice"},
		{measured(`{"region":"a","rtt":-1}`), "players[0].regions[0].rtt", "is not within 0 to 60000 milliseconds"},
		{measured(`{"region":"a","rtt":60001}`), "players[0].regions[0].rtt", "is not within"},
		{measured(`{"region":"a","loss":1.5}`), "players[0].regions[0].loss", "is not within 0 to 1"},
		{measured(`{"region":"a","rtt":"9"}`), "rtt", "has the wrong type"},
		{`{"maxConnections":101,"players":[{}]}`, "maxConnections", "101 is not within 1 to 100"},
		{`{"maxConnections":-1,"players":[{}]}`, "maxConnections", "-1 is not within 1 to 100"},
	} {
		rec := x.post("/v1/regions/choose", tokenAnna, c.body)
		wantProblem(t, rec, 400, 15001)
		var p api.Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || len(p.Details) != 1 || !strings.HasSuffix(p.Details[0].Key, c.member) ||
			!strings.HasPrefix(p.Details[0].Value, c.what) {
			t.Errorf("%s: %s", c.body, rec.Body)
		}
	}
	// The largest body that is permitted.
	var all []string
	for i := range api.MaxChoosePlayers {
		var regions []string
		for j := range api.MaxChooseMeasurements {
			regions = append(regions, fmt.Sprintf(`{"region":"region-%04d","rtt":123.456,"loss":0.01}`, j))
		}
		all = append(all, fmt.Sprintf(`{"player":"%0256d","regions":[%s]}`, i, strings.Join(regions, ",")))
	}
	wantStatus(t, x.post("/v1/regions/choose", tokenServer, `{"players":[`+strings.Join(all, ",")+`]}`), 200)
}

// TestChooseLargeBodies: a list of empty elements costs no more than a few times its bytes, and few large bodies are
// read at once: two of a player, eight of a server and sixteen of all. Small ones pass beside them.
func TestChooseLargeBodies(t *testing.T) {
	x := newFixture(t, Config{})
	for _, element := range []string{"{},", "null,", "0,"} {
		for _, form := range []string{`{"players":[%s{}]}`, `{"players":[{"regions":[%s{}]}]}`} {
			body := fmt.Sprintf(form, strings.Repeat(element, (maxChooseBody-100)/len(element)))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			rec := x.post("/v1/regions/choose", tokenAnna, body)
			runtime.ReadMemStats(&after)
			wantStatus(t, rec, http.StatusBadRequest)
			if took := after.TotalAlloc - before.TotalAlloc; took > 12*maxChooseBody {
				t.Errorf("%q in %q: %d KiB for a body of %d", element, form, took>>10, len(body)>>10)
			}
		}
	}

	begin := func(token string) (end func()) {
		reader, writer := io.Pipe()
		r := httptest.NewRequest(http.MethodPost, "/v1/regions/choose", reader)
		r.ContentLength = maxChooseBody
		r.Header.Set("Authorization", "Bearer "+token)
		var done sync.WaitGroup
		done.Go(func() { x.do(r) })
		if _, err := io.WriteString(writer, "{"); err != nil { // The handler reads it.
			t.Fatal(err)
		}
		return func() { _ = writer.Close(); done.Wait() }
	}
	large := choose[:len(choose)-1] + strings.Repeat(" ", maxBody) + "}"
	ends := []func(){begin(tokenAnna), begin(tokenAnna)}
	rec := x.post("/v1/regions/choose", tokenAnna, large)
	if rec.Code != http.StatusTooManyRequests || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("a third large body of a player: %d %s", rec.Code, rec.Body)
	}
	wantStatus(t, x.post("/v1/regions/choose", tokenAnna, choose), http.StatusOK)
	wantStatus(t, x.post("/v1/regions/choose", tokenBert, large), http.StatusOK)
	for range serversLargeBodies {
		ends = append(ends, begin(tokenServer))
	}
	wantStatus(t, x.post("/v1/regions/choose", tokenServer, large), http.StatusTooManyRequests)
	x.largeBodies.all += maxLargeBodies - len(ends)
	wantStatus(t, x.post("/v1/regions/choose", tokenBert, large), http.StatusServiceUnavailable)
	x.largeBodies.all -= maxLargeBodies - len(ends)
	for _, end := range ends {
		end()
	}
	wantStatus(t, x.post("/v1/regions/choose", tokenAnna, large), http.StatusOK)
	if x.largeBodies.all != 0 || len(x.largeBodies.byName) != 0 {
		t.Errorf("%+v after the end of all", x.largeBodies.byName)
	}
}

// TestRankRegions: the order of regions by what all players have measured. A player is written as
// REGION=MILLISECONDS or REGION=MILLISECONDS/LOSS.
func TestRankRegions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, players string
		full          string // regions without room
		want          string // the order, or an error
	}{
		{"the worst player decides", "eu=20 us=90 ; eu=150 us=95", "", "us eu ap"},
		{"the mean decides among equals", "eu=20 us=90 ; eu=90 us=21 ; eu=50 us=51", "", "eu us ap"},
		{"the first region decides among the rest", "us=50 eu=50", "", "eu us ap"},
		{"a region that a player does not reach comes later", "eu=20 us=200 ; us=200", "", "us eu ap"},
		{"not even measured", "ap=300 ; ap=300 eu=0", "", "ap eu us"},
		{"loss counts as repetition", "eu=50/0.5 us=90", "", "us eu ap"},
		{"all is lost", "eu=10/1 us=300", "", "us eu ap"},
		{"a region without room", "eu=20 us=90", "eu", "us ap eu"},
		{"a region that is not there", "mars=1 us=90", "", "us eu ap"},
		{"no player reaches any", "mars=1 ; ", "", "eu us ap"},
		{"no room", "eu=20", "eu us ap", "full"},
	} {
		s, err := alloc.NewService(alloc.ServiceConfig{
			Relay: alloctest.NewRelay(), Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "eu"}, {ID: "us"}, {ID: "ap"}},
			HasRoom: func(region string, seats int) bool {
				return seats == 5 && !slices.Contains(strings.Fields(c.full), region)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var players []api.PlayerMeasurements
		for text := range strings.SplitSeq(c.players, ";") {
			var player api.PlayerMeasurements
			for word := range strings.FieldsSeq(text) {
				region, rest, _ := strings.Cut(word, "=")
				ms, loss, _ := strings.Cut(rest, "/")
				rtt, err := strconv.ParseFloat(ms, 64)
				if err != nil {
					t.Fatal(err)
				}
				player.Regions = append(player.Regions,
					api.Measurement{Region: region, RTT: rtt, Loss: map[string]float64{"0.5": 0.5, "1": 1}[loss]})
			}
			players = append(players, player)
		}
		scores, err := rankRegions(s, alloc.Caller{}, 4, players)
		var got []string
		for _, r := range scores {
			got = append(got, r.region)
		}
		if errors.Is(err, alloc.ErrFull) {
			got = []string{"full"}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v (%v), want %s", c.name, got, err, c.want)
		}
		if c.name == "loss counts as repetition" && (scores[1].worstLatency != 100*time.Millisecond || scores[1].reached != 1) {
			t.Errorf("%s: %+v", c.name, scores[1])
		}
	}
}
