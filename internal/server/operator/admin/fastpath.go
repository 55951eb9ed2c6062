package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

var errNoFastPath = errors.New("this process has no fast path: its setting xdp is off")

func fastPathPages(mux *http.ServeMux, f privateapi.FastPath, log *slog.Logger) {
	state := func() (operator.FastPath, error) {
		if f == nil {
			return operator.FastPath{}, errNoFastPath
		}
		c := f.Counts()
		return operator.FastPath{
			On: c.On, OffBecause: c.OffBecause, Mode: c.Mode, Interfaces: c.Interfaces, Datagrams: c.Datagrams, Passed: c.Passed,
			NoNextHop: c.NoNextHop, FilterChanges: c.FilterChanges,
		}, nil
	}
	show(mux, operator.ListFastPath, func(context.Context, operator.NoQuery) (operator.FastPath, error) { return state() })
	mux.HandleFunc("PUT /fast-path", func(w http.ResponseWriter, r *http.Request) {
		on, err := parseOnOff(r.URL.Query())
		if err == nil && f != nil {
			f.SetEnabled(on)
			log.Warn("operator: fast path", "on", on, "from", r.RemoteAddr)
		}
		var now operator.FastPath
		if err == nil {
			now, err = state()
		}
		writeAnswer(w, now, err)
	})
}

func parseOnOff(query url.Values) (on bool, err error) {
	var q struct {
		State string `query:"state" oneof:"on off"`
	}
	err = operator.ParseQuery(query, &q)
	if err == nil && q.State == "" {
		err = fmt.Errorf("%w: state is missing: on or off", operator.ErrQuery)
	}
	return q.State == "on", err
}
