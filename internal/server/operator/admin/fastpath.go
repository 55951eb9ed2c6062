package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

type FastPath interface {
	Counts() engine.FastPathCounts
	SetEnabled(on bool)
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
	writeAnswer(w, operator.FastPath{
		On: c.On, OffBecause: c.OffBecause, Mode: c.Mode, Interfaces: c.Interfaces, Datagrams: c.Datagrams, Passed: c.Passed,
		NoNextHop: c.NoNextHop, FilterChanges: c.FilterChanges,
	}, nil)
}
