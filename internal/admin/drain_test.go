package admin

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
)

// drainer is a relay that only notes what it was asked for.
type drainer struct {
	state DrainState
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

func TestDrain(t *testing.T) {
	d := drainer{state: DrainState{Deadline: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Threshold: 3, Allocations: 7}}
	h := New(Config{
		Metrics: func(io.Writer) {}, Drain: d.drain, Undrain: d.undrain,
		Draining: func() DrainState { return d.state }, DrainDefaults: engine.DrainConfig{Deadline: time.Hour, Threshold: 1},
	})
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
		{"POST /drain?deadline=later", nil, 400, `deadline: "later" is not a time span`, engine.DrainConfig{}},
		{"POST /drain?deadline=-1s", nil, 400, "is not a time span", engine.DrainConfig{}},
		{"POST /drain?deadline=169h", nil, 400, "up to 168h", engine.DrainConfig{}},
		{"POST /drain?threshold=-1", nil, 400, "is not a number up to", engine.DrainConfig{}},
		{"POST /drain?deadline=1h&deadline=2h", nil, 400, "deadline is given 2 times", engine.DrainConfig{}},
		{"POST /drain?dealine=1h", nil, 400, `unknown parameter "dealine"`, engine.DrainConfig{}},
		{"DELETE /drain", ErrFinal, 409, "cannot be undone", engine.DrainConfig{}},
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
