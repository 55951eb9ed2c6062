package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/ferryrelay/ferry/engine"
)

type FastPath interface {
	Counts() engine.FastPathCounts
	SetEnabled(on bool)
}

type FastPathState struct {
	// On is set while the program relays. It may be off by request, or for a moment
	// while the network changes.
	On         bool     `json:"on"`
	OffBecause string   `json:"off_because,omitempty"`
	Mode       string   `json:"mode"` // "tc" or "native"
	Interfaces []string `json:"interfaces"`
	Datagrams  uint64   `json:"datagrams"` // relayed since the start
	// Passed are RELAYs that the program left to the sockets, by reason; NoNextHop endpoints to
	// which it does not send, by reason, since the network last changed.
	Passed    map[string]uint64 `json:"passed"`
	NoNextHop map[string]uint64 `json:"no_next_hop"`
	// FilterChanges are changes of the kernel's filters, after which each player's next datagram
	// goes to the sockets.
	FilterChanges uint64 `json:"filter_changes"`
}

var errNoFastPath = errors.New("this process has no fast path: its setting xdp is off")

func fastPathPages(mux *http.ServeMux, f FastPath, log *slog.Logger) {
	mux.HandleFunc("GET /fast-path", func(w http.ResponseWriter, _ *http.Request) { writeFastPath(w, f) })
	mux.HandleFunc("PUT /fast-path", func(w http.ResponseWriter, r *http.Request) {
		on, err := parseOnOff(r.URL.Query())
		if err == nil && f != nil {
			f.SetEnabled(on)
			log.Warn("operator: fast path", "on", on, "from", r.RemoteAddr)
		}
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		writeFastPath(w, f)
	})
}

func parseOnOff(query url.Values) (on bool, err error) {
	given := false
	err = parse(query, map[string]func(string) error{"state": func(text string) error {
		if on, given = text == "on", true; text != "on" && text != "off" {
			return fmt.Errorf("%q is neither on nor off", text)
		}
		return nil
	}})
	if err == nil && !given {
		err = fmt.Errorf("%w: state is missing: on or off", errQuery)
	}
	return on, err
}

func writeFastPath(w http.ResponseWriter, f FastPath) {
	if f == nil {
		writeAnswer(w, nil, errNoFastPath)
		return
	}
	c := f.Counts()
	writeAnswer(w, FastPathState{
		On: c.On, OffBecause: c.OffBecause, Mode: c.Mode, Interfaces: c.Interfaces, Datagrams: c.Datagrams, Passed: c.Passed,
		NoNextHop: c.NoNextHop, FilterChanges: c.FilterChanges,
	}, nil)
}
