package admin

import (
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// Why is the response of /why/ID: what happened to an allocation, live or ended, and what
// that means.
type Why struct {
	ID      string     `json:"id"`
	Because string     `json:"because"` // a sentence
	Events  []WhyEvent `json:"events"`  // the oldest first
}

// WhyEvent is an event, or Count of one kind in a row.
type WhyEvent struct {
	What     string    `json:"what"`
	Reason   string    `json:"reason,omitempty"`
	Peer     string    `json:"peer,omitempty"`
	Endpoint string    `json:"endpoint,omitempty"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Count    uint32    `json:"count"`
}

// whyPages registers GET /why/ID.
func whyPages(mux *http.ServeMux, why func(proto.AllocationID) Why) {
	mux.HandleFunc("GET /why/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := pathID(r)
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		writeAnswer(w, why(id), nil)
	})
}
