//go:build browser

package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// longVersion is what go build makes of a commit without a tag, in a changed tree.
const longVersion = "ferry v0.0.0-20261128083140-0123456789ab+dirty"

// openConsole opens a page of the built console whose server gives these answers, by path. The live values
// are what sample returns for 0, 1, 2 and so on.
func openConsole(t *testing.T, browser *chromium, page string, answers map[string]any, sample func(second int) object) consoleTab {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/console/", http.StripPrefix("/console/", http.FileServer(http.Dir("../../server/operator/console/dist"))))
	mux.HandleFunc("/console/data/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		began := time.Now().Add(-time.Hour)
		for second := 0; r.Context().Err() == nil; second++ {
			s := object{"title": longVersion, "mode": "serve", "host": "relay-7f9c6d5b8-x2lqp.fra.example.org", "region": "eu-central",
				"relay": strings.Repeat("0123456789abcdef", 2), "since": began, "conditions": []object{}}
			for name, value := range sample(second) {
				s[name] = value
			}
			if s["at"] == nil {
				s["at"] = began.Add(time.Duration(second) * time.Second)
			}
			b, _ := json.Marshal(s)
			fmt.Fprintf(w, "data: %s\n\n", b)
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	})
	answers["/console/login"] = object{"required": true, "signed_in": true, "role": "admin", "person": "maximiliane@operations.example.org"}
	for path, answer := range answers {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(answer) })
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.CloseClientConnections)
	return consoleTab{browser.open(srv.URL+"/console/#/"+page, "document.querySelector('h1') !== null")}
}

// statsOf are those of a relay that has received so many datagrams, half of them in the kernel.
func statsOf(received int, drops object) object {
	return object{"stats": object{"allocations": 2, "bound": 2, "links": 1, "seats": 2, "datagrams_in": received, "bytes_in": 100 * received,
		"datagrams_out": received, "bytes_out": 100 * received, "outcomes": object{}, "drops": drops, "workers": []int{received / 2},
		"intakes": []int{0}, "fast_path": received / 2, "kernel_drops": 0}}
}

func loadOf(relays int) object {
	return object{"relays": relays, "bytes_in": 0, "bytes_out": 0, "datagrams_in": 0, "datagrams_out": 0, "drops": 0, "p99": 3 * relays,
		"matches": 0, "players": 0, "seats": 0}
}

// openFleet opens the page of a fleet on an API process.
func openFleet(t *testing.T, browser *chromium, load object, nodes ...object) consoleTab {
	answers := map[string]any{"/console/data/fleet": object{"nodes": nodes}, "/canaries": object{"canaries": []object{}}}
	return openConsole(t, browser, "fleet", answers, func(int) object { return object{"mode": "api", "load": load} })
}

func nodeOf(id, state string, load object, problems ...string) object {
	return object{"id": id, "role": "relay", "region": "eu", "state": state, "version": longVersion[6:], "seats": 1, "max_seats": 0,
		"bound": 0, "allocations": 0, "udp": []string{"203.0.113.7:7777"},
		"summary": object{"host": "h", "load": load, "conditions": problem(problems...)}}
}

func (p consoleTab) text() (text string) {
	p.t.Helper()
	if err := p.evaluate("document.body.innerText", &text); err != nil {
		p.t.Fatal(err)
	}
	return text
}

// redTiles are the labels of the tiles that are red.
func (p consoleTab) redTiles() (labels []string) {
	p.t.Helper()
	if err := p.evaluate(`[...document.querySelectorAll(".tile.bad .label")].map(e => e.innerText)`, &labels); err != nil {
		p.t.Fatal(err)
	}
	return labels
}

// TestConsoleNotMeasured: before two samples, a rate is unknown and not zero.
func TestConsoleNotMeasured(t *testing.T) {
	t.Parallel()
	browser := startChromium(t)
	drops := object{"mac": 9}
	sample := func(int) object {
		s := statsOf(1000, drops)
		s["at"] = time.Unix(1e9, 0)
		return s
	}
	p := openConsole(t, browser, "overview", map[string]any{}, sample)
	p.shows("Traffic in\n–")
	p.shows("mac\t–\t9")
	for _, zero := range []string{"0 bit/s", "0 datagrams/s", "0/s"} {
		if text := p.text(); strings.Contains(text, zero) {
			t.Errorf("the overview shows %s after one sample:\n%s", zero, text)
		}
	}
	p = openConsole(t, browser, "attack", map[string]any{}, sample)
	p.shows("mac\t–\t–\t9")
	p = openFleet(t, browser, nil, nodeOf("fresh", "ready", loadOf(0)))
	p.shows("Matches\nnot known")
	p.shows("Dropped\n–")
	if text := p.text(); strings.Contains(text, "0 bit/s") || strings.Contains(text, "0/s") {
		t.Errorf("the fleet shows what no relay has measured:\n%s", text)
	}
}

// TestConsoleFastPath: what the kernel relays is a transport of its own.
func TestConsoleFastPath(t *testing.T) {
	t.Parallel()
	browser := startChromium(t)
	p := openConsole(t, browser, "overview", map[string]any{}, func(second int) object { return statsOf(2000*second, object{}) })
	p.shows("UDP and DTLS 1,000")
	p.shows("fast path 1,000")
}

// TestConsoleMissing: a list without the part of some relays does not claim what they have.
func TestConsoleMissing(t *testing.T) {
	t.Parallel()
	browser := startChromium(t)
	missing := []object{{"reason": "the store does not answer"}, {"relay": "aaaa", "region": "us", "reason": "no answer"}}
	list := object{"matches": []object{}, "total": 0, "truncated": true, "missing": missing}
	p := openConsole(t, browser, "matches", map[string]any{"/matches": list}, func(int) object { return object{"mode": "api"} })
	p.shows("0 matches at the relays that answered")
	p.shows("a part of the fleet is missing: the store does not answer")
	p.shows("relay aaaa (us) is missing: no answer")
	if text := p.text(); strings.Contains(text, "there are more") {
		t.Errorf("it claims further matches:\n%s", text)
	}
}

func problem(names ...string) (all []object) {
	for _, name := range names {
		all = append(all, object{"name": name, "state": "problem", "text": "look"})
	}
	return all
}

// TestConsoleRed: a tile of a fleet is red if what it sums up is red below.
func TestConsoleRed(t *testing.T) {
	t.Parallel()
	browser := startChromium(t)
	node := func(id, state string, problems ...string) object { return nodeOf(id, state, loadOf(1), problems...) }
	for name, c := range map[string]struct {
		nodes []object
		red   []string
	}{
		"a note":    {[]object{node("a", "ready"), node("b", "draining")}, nil},
		"not ready": {[]object{node("a", "ready"), node("b", "not ready")}, []string{"Relays ready"}},
		"dead":      {[]object{node("a", "ready"), node("b", "dead")}, []string{"Relays ready"}},
		"no relay":  {[]object{node("a", "draining")}, []string{"Relays ready"}},
		"conditions": {[]object{node("a", "ready", "attack", "sending"), node("b", "ready", "round trip")},
			[]string{"Traffic out", "Dropped", "Round trip, p99"}},
	} {
		p := openFleet(t, browser, loadOf(2), c.nodes...)
		p.shows("1 region")
		if red := p.redTiles(); !slices.Equal(red, c.red) {
			t.Errorf("%s: the red tiles are %q, want %q", name, red, c.red)
		}
	}
}

// TestConsoleRedOverview: the tiles of one relay are red for its problems.
func TestConsoleRedOverview(t *testing.T) {
	t.Parallel()
	browser := startChromium(t)
	p := openConsole(t, browser, "overview", map[string]any{}, func(second int) object {
		s := statsOf(1000*second, object{})
		s["conditions"], s["rtt"] = problem("round trip", "sending", "attack"), object{"last": 50, "p50": 50, "p99": 50, "lost": 0}
		return s
	})
	p.shows("Traffic in")
	if red := p.redTiles(); !slices.Equal(red, []string{"Traffic out", "Round trip, p99", "Dropped"}) {
		t.Errorf("the red tiles are %q", red)
	}
}

// TestConsoleHeader: the header has at most three rows, whatever is long in it.
func TestConsoleHeader(t *testing.T) {
	t.Parallel()
	browser := startChromium(t)
	p := openConsole(t, browser, "overview", map[string]any{}, func(second int) object { return statsOf(1000*second, object{}) })
	p.shows("UDP and DTLS 500")
	for _, width := range []int{320, 400, 600, 800, 1280} {
		p.size(width, 900, "light")
		var header struct {
			Height, Wide float64
			Rows         int
			Hidden       []string
		}
		p.do(&header, `(() => {
			const all = [...document.querySelectorAll("header :is(strong, .live, .place, nav, button)")].map(e => [e, e.getBoundingClientRect()])
			const rows = []
			for (const [, r] of all.sort((a, b) => a[1].top - b[1].top)) if (!rows.length || r.top >= rows[rows.length - 1] - 1) rows.push(r.bottom)
			return {
				rows: rows.length, wide: document.documentElement.scrollWidth - innerWidth,
				hidden: all.filter(([, r]) => r.right > innerWidth + 1 || r.left < -1).map(([e]) => e.outerHTML), height: document.querySelector("header").offsetHeight,
			}
		})`)
		t.Logf("%d px: %+v", width, header)
		if header.Rows > 3 || header.Height > 120 || header.Wide > 0 || len(header.Hidden) > 0 {
			t.Errorf("%d px: the header has %+v", width, header)
		}
	}
}
