package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

// Reached is the response of /reach: whether a server answered.
type Reached struct {
	// Sent and Received count probes; a connection over TCP counts as one.
	Sent     int           `json:"sent"`
	Received int           `json:"received"`
	RTT      time.Duration `json:"round_trip_ns"` // mean of the answered ones
	Error    string        `json:"error,omitempty"`
}

// maxReaches bounds the checks at a time: a loop of an operator must not make a flood of it.
const maxReaches = 4

// reachPages registers POST /reach?by=udp&address=HOST:PORT, with which ferry doctor asks
// whether its machine is reached from here. It is a POST since it sends to an address of the
// caller's choice: only operators may, and the audit log has it.
func reachPages(mux *http.ServeMux, reach func(ctx context.Context, network, address string) (Reached, error)) {
	gate := make(chan struct{}, maxReaches)
	mux.HandleFunc("POST /reach", func(w http.ResponseWriter, r *http.Request) {
		var by, address string
		err := parse(r.URL.Query(), map[string]func(string) error{
			"by":      func(text string) error { by = text; return nil },
			"address": func(text string) error { address = text; return nil },
		})
		host, port, addressErr := net.SplitHostPort(address)
		if err == nil && (addressErr != nil || host == "" || port == "" || by != "udp" && by != "tcp") {
			err = fmt.Errorf("%w: by has to be udp or tcp, and address HOST:PORT", errQuery)
		}
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		var answer Reached
		err = withTimeout(r.Context(), func(ctx context.Context) error {
			select {
			case gate <- struct{}{}:
			case <-ctx.Done():
				return fmt.Errorf("%w: %d other checks run", alloc.ErrUnavailable, maxReaches)
			}
			defer func() { <-gate }()
			var failed error
			if answer, failed = reach(ctx, by, address); failed != nil {
				answer.Error = failed.Error()
			}
			return nil
		})
		writeAnswer(w, answer, err)
	})
}
