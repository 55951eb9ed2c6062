package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

type fakeFleet struct {
	fakeRelay
	err error
}

func (f *fakeFleet) Drain(_ context.Context, relay string, cfg engine.DrainConfig) (operator.DrainState, error) {
	f.did = append(f.did, fmt.Sprint("drain ", relay, " ", cfg.Deadline, " ", cfg.Threshold))
	return operator.DrainState{Draining: f.err == nil, Threshold: cfg.Threshold, Allocations: 7}, f.err
}

func (f *fakeFleet) Undrain(_ context.Context, relay string) (operator.DrainState, error) {
	f.did = append(f.did, "undrain "+relay)
	return operator.DrainState{Allocations: 7}, f.err
}

func (f *fakeFleet) Page(ctx context.Context, relay, target string) (operator.Page, error) {
	f.did = append(f.did, "show "+relay+" "+target)
	return RenderPage(ctx, RelayPages(&RelayConfig{Engine: &f.fakeRelay}), target, 10_000), f.err
}

// RelayOf knows hosts only, as the store does.
func (f *fakeFleet) RelayOf(_ context.Context, id proto.AllocationID) (string, error) {
	switch id {
	case hostID:
		return asNode, nil
	case busyID:
		return "", alloc.ErrUnavailable
	}
	return "", alloc.ErrNotFound
}

// The nodes of the tests: two that only a long beginning tells apart, and an API
// process.
const (
	euNode = "3f2a0000-0000-4000-8000-000000000001"
	usNode = "3f2a0000-0000-4000-8000-000000000002"
	asNode = "77aa0000-0000-4000-8000-000000000003"
)

func testNodes(context.Context) (operator.Nodes, error) {
	return operator.Nodes{Nodes: []operator.Node{
		{ID: "host-1", Role: "api", State: "ready"}, {ID: euNode, Role: "relay", Region: "eu", State: "ready"},
		{ID: usNode, Role: "relay", Region: "us", State: "dead"}, {ID: asNode, Role: "relay", Region: "as", State: "unknown"},
	}}, nil
}

// TestFleetPages: an API process drains the relay that is named and no other,
// and says which there are to a name that is not one of them.
func TestFleetPages(t *testing.T) {
	t.Parallel()
	f := new(fakeFleet)
	cfg, log := operatorConfig(nil, func(c *Config) {
		c.Relay, c.Drain = nil, nil
		c.Fleet, c.Nodes = f, testNodes
	})
	h := New(cfg)
	for _, c := range []struct {
		request string
		err     error
		status  int
		want    string
		did     string
	}{
		{"POST /nodes/77aa/drain", nil, 200, `{"node":"` + asNode + `","draining":true,`, "drain " + asNode + " -1ns -1"},
		{"POST /nodes/77AA0/drain?deadline=5m&threshold=2", nil, 200, `"threshold":2,"allocations":7}`, "drain " + asNode + " 5m0s 2"},
		{"POST /nodes/" + euNode + "/drain?deadline=0", nil, 200, euNode, "drain " + euNode + " 0s -1"},
		{"POST /nodes/" + usNode + "/drain", nil, 409, "relay " + usNode + " is dead: it last announced itself at 0001", ""},
		{"DELETE /nodes/" + usNode + "/drain", nil, 409, "is dead", ""},
		{"DELETE /nodes/" + euNode + "/drain", nil, 200, `{"node":"` + euNode + `","draining":false,`, "undrain " + euNode},
		{"POST /nodes/3f2a0000/drain", nil, 400, "2 nodes have an id that begins with \"3f2a0000\"; give more of one of them\n  " + euNode +
			"  relay  eu  ready\n  " + usNode + "  relay  us  dead\n", ""},
		{"POST /nodes/77a/drain", nil, 400, "4 characters", ""},
		{"POST /nodes/beef/drain", nil, 404, "begins with \"beef\"; the relays are\n  " + euNode + "  relay  eu  ready\n", ""},
		{"POST /nodes/" + asNode + "0/drain", nil, 404, "the relays are", ""},
		{"POST /nodes/host/drain", nil, 409, "which has no relay", ""},
		{"POST /nodes/77aa/drain?dealine=1h", nil, 400, `unknown parameter "dealine"`, ""},
		{"POST /nodes/77aa/drain?deadline=-1ns", nil, 400, "is not a duration", ""},
		{"POST /nodes/77aa/drain", alloc.ErrUnavailable, 503, "unavailable", "drain " + asNode + " -1ns -1"},
		{"DELETE /nodes/77aa/drain", operator.ErrFinal, 409, "cannot be undone", "undrain " + asNode},
		{"GET /nodes/77aa/drain", nil, 404, "not found", "show " + asNode + " /drain"},
		{"GET /nodes/77aa/allocations?role=host&limit=7", nil, 200, `{"allocations":[{"id":"`,
			"show " + asNode + " /allocations?role=host&limit=7"},
		{"GET /nodes/77aa/allocations?rolle=host", nil, 400, `unknown parameter "rolle"`, "show " + asNode + " /allocations?rolle=host"},
		{"GET /nodes/77aa/usage", nil, 200, `{"since":`, "show " + asNode + " /usage"},
		{"GET /nodes/77aa/usage%3Fa", nil, 404, "not found", "show " + asNode + " /usage%3Fa"},
		{"GET /nodes/77aa/stats", alloc.ErrUnavailable, 503, "unavailable", "show " + asNode + " /stats"},
		{"GET /nodes/beef/usage", nil, 404, "the relays are", ""},
		{"GET /nodes/host/usage", nil, 409, "which has no relay", ""},
		{"DELETE /nodes/77aa/allocations/" + hostID.String(), nil, 405, "", ""},
		{"POST /drain", nil, 409, "name one of the relays", ""},
		{"DELETE /drain", nil, 409, "name one of the relays", ""},
		{"DELETE /allocations/" + hostID.String(), nil, 200, `"done":"closed"`, "end " + hostID.String()},
		{"DELETE /allocations/" + nobodyID.String(), nil, 404, "not found", "end " + nobodyID.String()},
		{"POST /allocations/" + playerID.String() + "/kick", nil, 200, `"done":"kicked"`, "kick " + playerID.String()},
		{"POST /allocations/" + hostID.String() + "/kick", nil, 409, "cannot be kicked", "kick " + hostID.String()},
		{"POST /allocations/" + busyID.String() + "/kick", nil, 503, "unavailable", "kick " + busyID.String()},
		{"POST /allocations/x/kick", nil, 400, "is not the id", ""},
		{"GET /allocations", nil, 409, "which has no allocations", ""},
		{"GET /allocations/" + hostID.String() + "/players?limit=1", nil, 200, `"next":77}`, "show " + asNode + " /allocations/" +
			hostID.String() + "/players?limit=1"},
		{"GET /allocations/" + hostID.String(), nil, 200, `"role":"host"`, "show " + asNode + " /allocations/" + hostID.String()},
		{"GET /allocations/" + nobodyID.String() + "/players", nil, 404, "not found", ""},
		{"GET /allocations/" + busyID.String(), nil, 503, "unavailable", ""},
		{"GET /allocations/x/players", nil, 400, "is not the id", ""},
	} {
		f.err, f.did = c.err, nil
		method, path, _ := strings.Cut(c.request, " ")
		w := get(h, method, path)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || strings.Join(f.did, ",") != c.did {
			t.Errorf("%s: %d %s, want %d %s; did %q, want %q", c.request, w.Code, w.Body, c.status, c.want, f.did, c.did)
		}
	}
	if n := strings.Count(log.String(), "relay drain begun"); n != 3 || !strings.Contains(log.String(), "relay="+euNode) {
		t.Errorf("the log has %d drains, want 3:\n%s", n, log)
	}
	cfg.Nodes = func(context.Context) (operator.Nodes, error) { return operator.Nodes{}, errors.New("broken") }
	if w := get(New(cfg), "POST", "/nodes/77aa/drain"); w.Code != 500 {
		t.Errorf("no nodes: %d %s", w.Code, w.Body)
	}
}

// TestOwnNode: a process with a relay drains that by its own name, and is not
// drained by another one's.
func TestOwnNode(t *testing.T) {
	t.Parallel()
	d := drainer{state: operator.DrainState{Allocations: 7}}
	cfg, _ := operatorConfig(new(fakeRelay), func(c *Config) {
		c.Drain = d.config()
		c.Nodes = func(context.Context) (operator.Nodes, error) {
			return operator.Nodes{Nodes: []operator.Node{{ID: euNode, Role: "relay"}}}, nil
		}
	})
	h := New(cfg)
	if w := get(h, "POST", "/nodes/77aa/drain"); w.Code != 404 || d.state.Draining || !strings.Contains(w.Body.String(), euNode) {
		t.Errorf("another one's name: %d %s", w.Code, w.Body)
	}
	w := get(h, "POST", "/nodes/3f2a/drain?threshold=2")
	if want := (engine.DrainConfig{Deadline: time.Hour, Threshold: 2}); w.Code != 200 || d.asked != want ||
		!strings.Contains(w.Body.String(), `{"node":"`+euNode+`","draining":true`) {
		t.Errorf("its own: %d %s, asked %+v", w.Code, w.Body, d.asked)
	}
	if w := get(h, "DELETE", "/nodes/3f2a/drain"); w.Code != 200 || d.state.Draining {
		t.Errorf("undrain: %d %s", w.Code, w.Body)
	}
	d.err = operator.ErrFinal
	if w := get(h, "DELETE", "/nodes/3f2a/drain"); w.Code != 409 {
		t.Errorf("a final one: %d %s", w.Code, w.Body)
	}
}

// TestCandidates: a large fleet does not fill the screen.
func TestCandidates(t *testing.T) {
	t.Parallel()
	var all []operator.Node
	for i := range 1000 {
		all = append(all, operator.Node{ID: proto.AllocationID{byte(i), byte(i >> 8), 1}.String(), Role: "relay"})
	}
	none := operator.Nodes{Nodes: []operator.Node{{ID: "host-1", Role: "api"}}}
	_, err := findNode(&none, "ffffffff")
	if !errors.Is(err, errNode) || !strings.Contains(err.Error(), "knows of no relay") {
		t.Errorf("no relay: %v", err)
	}
	none.StoreAway = time.Now()
	if _, err := findNode(&none, "ffffffff"); !errors.Is(err, alloc.ErrUnavailable) || errors.Is(err, errNode) {
		t.Errorf("without the store: %v", err)
	}
	_, err = findNode(&operator.Nodes{Nodes: all}, "ffffffff")
	if err == nil || strings.Count(err.Error(), "\n") != maxCandidates+2 || !strings.Contains(err.Error(), "and 992 more") {
		t.Errorf("%v", err)
	}
}

// TestRenderPage: RenderPage returns a complete page or an error status, and a relay serves its pages by its
// id.
func TestRenderPage(t *testing.T) {
	t.Parallel()
	pages := RelayPages(&RelayConfig{Engine: new(fakeRelay)})
	whole := RenderPage(t.Context(), pages, "/allocations", 1<<20)
	if whole.Status != 200 || len(whole.Body) == 0 {
		t.Fatalf("%d %s", whole.Status, whole.Body)
	}
	if got := RenderPage(t.Context(), pages, "/allocations", len(whole.Body)); string(got.Body) != string(whole.Body) {
		t.Errorf("in as many bytes as it has: %d %s", got.Status, got.Body)
	}
	for most := range len(whole.Body) {
		if got := RenderPage(t.Context(), pages, "/allocations", most); got.Status != 507 ||
			!strings.Contains(string(got.Body), "lower the parameter limit") {
			t.Fatalf("in %d bytes: %d %s", most, got.Status, got.Body)
		}
	}
	for target, status := range map[string]int{"": 400, "x": 400, "/%zz": 400, "/": 404, "/metrics": 404,
		"/allocations/x": 400, "/usage": 200} {
		if got := RenderPage(t.Context(), pages, target, 1<<20); got.Status != status {
			t.Errorf("%q: %d %s, want %d", target, got.Status, got.Body, status)
		}
	}
	cfg, _ := operatorConfig(new(fakeRelay), func(*Config) {})
	h := New(cfg)
	for path, status := range map[string]int{"/nodes/nnnn/usage": 200, "/nodes/nnnn/allocations": 200, "/nodes/nnnn/metrics": 404,
		"/nodes/mmmm/usage": 404} {
		if w := get(h, "GET", path); w.Code != status {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, status)
		}
	}
}

type drainer struct {
	state operator.DrainState
	asked engine.DrainConfig
	err   error
}

func (d *drainer) drain(_ context.Context, cfg engine.DrainConfig) error {
	if d.err == nil {
		d.asked, d.state.Draining = cfg, true
	}
	return d.err
}

func (d *drainer) undrain(context.Context) error {
	if d.err == nil {
		d.state.Draining = false
	}
	return d.err
}

func (d *drainer) config() *DrainConfig {
	return &DrainConfig{
		Drain: d.drain, Undrain: d.undrain, State: func() operator.DrainState { return d.state },
		Defaults: engine.DrainConfig{Deadline: time.Hour, Threshold: 1},
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	d := drainer{state: operator.DrainState{Deadline: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Threshold: 3, Allocations: 7}}
	h := New(Config{Metrics: func(io.Writer) {}, Drain: d.config()})
	const on = `{"draining":true,"final":false,"deadline":"2026-01-02T03:04:05Z","threshold":3,"allocations":7}`
	off := strings.Replace(on, "true", "false", 1)
	for _, c := range []struct {
		request string
		err     error
		status  int
		body    string
		asked   engine.DrainConfig
	}{
		{"GET /drain", nil, 200, off, engine.DrainConfig{}},
		{"POST /drain", nil, 200, on, engine.DrainConfig{Deadline: time.Hour, Threshold: 1}},
		{"POST /drain?deadline=5m&threshold=20", nil, 200, on, engine.DrainConfig{Deadline: 5 * time.Minute, Threshold: 20}},
		{"POST /drain?deadline=0&threshold=0", nil, 200, on, engine.DrainConfig{}},
		{"DELETE /drain", nil, 200, off, engine.DrainConfig{}},
		{"POST /drain?deadline=later", nil, 400, `deadline: "later" is not a duration`, engine.DrainConfig{}},
		{"POST /drain?deadline=-1s", nil, 400, "is not a duration", engine.DrainConfig{}},
		{"POST /drain?deadline=169h", nil, 400, "up to 168h", engine.DrainConfig{}},
		{"POST /drain?threshold=-1", nil, 400, "is not a number up to", engine.DrainConfig{}},
		{"POST /drain?deadline=1h&deadline=2h", nil, 400, "deadline is given 2 times", engine.DrainConfig{}},
		{"POST /drain?dealine=1h", nil, 400, `unknown parameter "dealine"`, engine.DrainConfig{}},
		{"DELETE /drain", operator.ErrFinal, 409, "cannot be undone", engine.DrainConfig{}},
		{"POST /drain", alloc.ErrUnavailable, 503, "unavailable", engine.DrainConfig{}},
		{"POST /drain", errors.New("broken"), 500, "broken", engine.DrainConfig{}},
	} {
		d.asked, d.err = engine.DrainConfig{}, c.err
		method, path, _ := strings.Cut(c.request, " ")
		w := get(h, method, path)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) || d.asked != c.asked {
			t.Errorf("%s: %d %s, asked %+v", c.request, w.Code, w.Body, d.asked)
		}
	}
}
