package ctl

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// TestTopOfFleet: top of an API process is the sum of the relays that answer, or one of them.
func TestTopOfFleet(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	stats := map[string]operator.Stats{
		"one": {Now: time.Now(), Since: began, Allocations: 3, Received: 600, Workers: []uint64{300, 300}, Drops: map[string]uint64{"mac": 7}},
		"two": {Now: time.Now(), Since: began.Add(time.Second), Allocations: 40, Received: 60_000, Workers: []uint64{60_000},
			Drops: map[string]uint64{"mac": 1, "seal": 2}},
	}
	usage := map[string]operator.Usage{
		"one": {Projects: []operator.ProjectUsage{{Tenant: "t1", Project: "game", Environment: "a", Hosts: 1, Bytes: 100}}},
		"two": {Projects: []operator.ProjectUsage{{Tenant: "t1", Project: "game", Environment: "a", Hosts: 10, Bytes: 900},
			{Tenant: "t2", Project: "other", Environment: "b", Hosts: 5}}},
	}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, value any) { _ = json.NewEncoder(w).Encode(value) }
	mux.HandleFunc("/nodes", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, operator.Nodes{Nodes: []operator.Node{{ID: "host", Role: "api"}, {ID: "one", Role: "relay"}, {ID: "two", Role: "relay"},
			{ID: "gone", Role: "relay"}}})
	})
	mux.HandleFunc("/nodes/{node}/{page}", func(w http.ResponseWriter, r *http.Request) {
		node := r.PathValue("node")
		switch _, known := stats[node]; {
		case !known:
			http.Error(w, "no answer", http.StatusServiceUnavailable)
		case r.PathValue("page") == "stats":
			answer(w, stats[node])
		default:
			answer(w, usage[node])
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "an API process", http.StatusConflict) })
	srv := httptest.NewServer(mux)
	defer srv.Close()
	c, err := New(Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	top := func(node string) string {
		t.Helper()
		var out strings.Builder
		if err := c.Top(t.Context(), Output{Stdout: &out, Times: 1, Every: time.Second}, node); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}
	for node, want := range map[string][]string{
		"": {"sum of 2 relays, 1 DO NOT ANSWER", "allocations 43", "in 1,010/s", "workers 3", "mac 0/s 8", "seal 0/s 2",
			"game/a 11", "other/b 5"},
		"one": {"allocations 3", "in 10/s", "workers 2", "mac 0/s 7", "game/a 1"},
	} {
		page := top(node)
		for _, w := range want {
			if !strings.Contains(page, w) {
				t.Errorf("node %q: %q is missing in %s", node, w, page)
			}
		}
	}
	delete(stats, "one")
	delete(stats, "two")
	if err := c.Top(t.Context(), Output{Stdout: new(strings.Builder), Times: 1, Every: time.Second}, ""); err == nil {
		t.Error("no relay answers, and there is no error")
	}
}
