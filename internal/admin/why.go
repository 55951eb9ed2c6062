package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// History knows what happened to the allocations of a relay. Its methods must be safe for
// concurrent use.
type History interface {
	// Why explains an allocation, live or ended. Error: alloc.ErrUnavailable.
	Why(context.Context, proto.AllocationID) (Why, error)
	// HostOf returns the live host of a join code.
	HostOf(code string) (proto.AllocationID, bool)
	// CodeOf returns the join code of a live host, "" if it has none.
	CodeOf(host proto.AllocationID) string
}

// Why is the response of /why/NAME: what happened to an allocation, live or ended, and what
// that means.
type Why struct {
	ID       string `json:"id"`
	Role     string `json:"role,omitempty"`
	JoinCode string `json:"join_code,omitempty"` // of a live host
	// Known: something has happened to it that is still known.
	Known   bool       `json:"known"`
	Because string     `json:"because"` // a sentence
	Events  []WhyEvent `json:"events"`  // the oldest first
	// Players are those that joined a host lately, at most 100, the newest last.
	Players []WhyPlayer `json:"players,omitempty"`
}

// WhyPlayer is a joiner of a host.
type WhyPlayer struct {
	ID      string `json:"id"`
	Because string `json:"because"`
}

// WhyEvent is an event, or Count of one kind.
type WhyEvent struct {
	What     string    `json:"what"`
	Reason   string    `json:"reason,omitempty"`
	Peer     string    `json:"peer,omitempty"`
	Endpoint string    `json:"endpoint,omitempty"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Count    uint32    `json:"count"`
}

// whyPages registers GET /why/NAME, where NAME is the id of an allocation or a join code.
func whyPages(mux *http.ServeMux, h History) {
	mux.HandleFunc("GET /why/{name}", func(w http.ResponseWriter, r *http.Request) {
		var answer Why
		id, err := proto.ParseAllocationID(r.PathValue("name"))
		if err != nil {
			var ok bool
			if id, ok = h.HostOf(r.PathValue("name")); !ok {
				writeAnswer(w, nil, fmt.Errorf("%w: %q is neither the id of an allocation nor the join code of a live host", alloc.ErrNotFound, r.PathValue("name")))
				return
			}
		}
		err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
			answer, err = h.Why(ctx, id)
			return err
		})
		writeAnswer(w, answer, err)
	})
}

// whyOfFleet registers GET /why/NAME of a process without a relay, which asks all relays.
func whyOfFleet(mux *http.ServeMux, cfg *Config) {
	mux.HandleFunc("GET /why/{name}", func(w http.ResponseWriter, r *http.Request) {
		var answer Why
		err := withTimeout(r.Context(), func(ctx context.Context) (err error) {
			answer, err = askRelaysWhy(ctx, cfg, r.PathValue("name"))
			return err
		})
		writeAnswer(w, answer, err)
	})
}

// relaysAtOnce is how many relays are asked at the same time.
const relaysAtOnce = 16

// askRelaysWhy returns the answer of the first relay that knows the allocation or join code.
// A relay that does not answer is an error only if no other one knows.
func askRelaysWhy(ctx context.Context, cfg *Config, name string) (answer Why, err error) {
	nodes, err := cfg.Nodes(ctx)
	if err != nil {
		return Why{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu     sync.Mutex // guards answer and failed
		failed []error
		wait   sync.WaitGroup
		gate   = make(chan struct{}, relaysAtOnce)
	)
	for _, n := range nodes {
		if n.Role == apiRole {
			continue
		}
		gate <- struct{}{}
		wait.Go(func() {
			defer func() { <-gate }()
			found, err := whyOfRelay(ctx, cfg.Fleet, n.ID, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case answer.Known:
			case err != nil:
				failed = append(failed, err)
			case found.Known:
				answer = found
				cancel()
			}
		})
	}
	wait.Wait()
	switch {
	case answer.Known:
		return answer, nil
	case len(failed) > 0:
		return Why{}, errors.Join(failed...)
	}
	return Why{}, fmt.Errorf("%w: no relay of the fleet knows %q", alloc.ErrNotFound, name)
}

// whyOfRelay asks one relay. One that does not know the name is no error.
func whyOfRelay(ctx context.Context, f Fleet, relay, name string) (y Why, err error) {
	page, err := f.Page(ctx, relay, "/why/"+url.PathEscape(name))
	switch {
	case err != nil:
		return Why{}, err
	case page.Status == http.StatusNotFound:
		return Why{}, nil
	case page.Status != http.StatusOK:
		return Why{}, fmt.Errorf("%w: relay %s: status %d", alloc.ErrUnavailable, relay, page.Status)
	}
	return y, json.Unmarshal(page.Body, &y)
}
