package admin

import (
	"context"
	"net/http"
	"time"
)

// Node is one process of the fleet; alone it is this one.
type Node struct {
	ID      string `json:"id"`   // of the relay
	Role    string `json:"role"` // "serve", "dev", "relay" or "api"
	Region  string `json:"region"`
	Version string `json:"version"`
	// State is "ready", "draining" or "not ready"; of another process "suspect",
	// which did not answer lately, and "dead", which does not announce itself.
	State       string    `json:"state"`
	UDP         []string  `json:"udp"`
	API         string    `json:"api"`            // of another process: its cluster listener
	Since       time.Time `json:"since,omitzero"` // absent: not known, of another process
	Allocations int       `json:"allocations"`
	Bound       int       `json:"bound"`
	Links       int       `json:"links"`
	// Seats are taken; MaxSeats of 0 is no limit.
	Seats    int `json:"seats"`
	MaxSeats int `json:"max_seats"`
}

// Nodes is what /nodes shows.
type Nodes struct {
	Nodes []Node `json:"nodes"`
}

func nodePages(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, r *http.Request) {
		nodes := Nodes{[]Node{}}
		err := within(r.Context(), func(ctx context.Context) error {
			all, err := cfg.Nodes(ctx)
			nodes.Nodes = append(nodes.Nodes, all...)
			return err
		})
		answer(w, nodes, err)
	})
}
