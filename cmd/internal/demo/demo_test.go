package demo

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

func options(players int, d time.Duration) Options {
	return Options{Players: players, Duration: d, Logger: slog.New(slog.DiscardHandler)}
}

func TestMatch(t *testing.T) {
	for _, players := range []int{1, 3} {
		var out strings.Builder
		if err := Run(t.Context(), &out, options(players, 300*time.Millisecond)); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if !strings.HasPrefix(lines[0], "relay udp=127.0.0.1:") || !strings.Contains(lines[0], "http=http://127.0.0.1:") {
			t.Errorf("first line %q", lines[0])
		}
		code, ok := strings.CutPrefix(lines[1], "join code ")
		if _, err := alloc.ParseCode(code); !ok || err != nil {
			t.Errorf("second line %q: %v", lines[1], err)
		}
		if last := lines[len(lines)-1]; last != "every datagram arrived" {
			t.Errorf("last line %q", last)
		}
		// Heading of two lines, a row each, an empty line, the last line.
		rows := lines[len(lines)-2-players : len(lines)-2]
		for i, row := range rows {
			f := strings.Fields(row)
			if len(f) != 11 || f[0] != string(rune('1'+i)) || f[1] != "9" || f[2] != "9" || f[3] != "0" || f[4] != "18" ||
				f[5] != "18" || f[6] != "0" {
				t.Errorf("row %q", row)
			}
		}
	}
}

func TestJSON(t *testing.T) {
	o := options(2, 200*time.Millisecond)
	o.JSON = true
	var out strings.Builder
	if err := Run(t.Context(), &out, o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	var r Report
	d := json.NewDecoder(strings.NewReader(out.String()))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("not one object (%v):\n%s", err, out.String())
	}
	if !r.OK || r.Error != "" || r.Rate != rate || r.Seconds != 0.2 || len(r.Players) != 2 {
		t.Errorf("%+v", r)
	}
	for i, p := range r.Players {
		if p.Player != i+1 || p.Allocation == "" || p.ToHost != (Direction{Sent: 6, Received: 6}) ||
			p.FromHost != (Direction{Sent: 12, Received: 12}) {
			t.Errorf("%+v", p)
		}
		if p.RoundTrip.Count != 6 || p.RoundTrip.P50 <= 0 || p.RoundTrip.P99 < p.RoundTrip.P50 {
			t.Errorf("%+v", p.RoundTrip)
		}
	}
}

// TestRelayDies: a relay that ends in the middle fails the demo, in words and
// in JSON, long before the match would have been over.
func TestRelayDies(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		o := options(2, time.Minute)
		o.JSON = asJSON
		o.exchanging = func(stopRelay func()) { time.AfterFunc(200*time.Millisecond, stopRelay) }
		var out strings.Builder
		began := time.Now()
		err := Run(t.Context(), &out, o)
		if !errors.Is(err, ErrRelayStopped) {
			t.Errorf("%v\n%s", err, out.String())
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		if asJSON {
			var r Report
			if err := json.Unmarshal([]byte(out.String()), &r); err != nil || r.OK || r.Error == "" || len(r.Players) != 2 {
				t.Errorf("%v\n%s", err, out.String())
			}
		} else if strings.Contains(out.String(), "every datagram arrived") {
			t.Errorf("it says that all is well:\n%s", out.String())
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := options(1, time.Minute)
	o.exchanging = func(func()) { cancel() }
	var out strings.Builder
	if err := Run(ctx, &out, o); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("%v", err)
	}
	if err := Run(ctx, &out, options(1, time.Second)); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted before the start: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		options(0, time.Second), options(-1, time.Second), options(MaxPlayers+1, time.Second),
		options(1, 0), options(1, -1), options(1, MaxDuration+1),
	} {
		var out strings.Builder
		if err := Run(t.Context(), &out, o); err != ErrOptions || out.Len() > 0 {
			t.Errorf("%d players, %v: %v", o.Players, o.Duration, err)
		}
	}
}

type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestOutputFails(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		o := options(1, 50*time.Millisecond)
		o.JSON = asJSON
		if err := Run(t.Context(), full{}, o); !errors.Is(err, errFull) {
			t.Errorf("JSON %v: %v", asJSON, err)
		}
	}
}

func TestVerdict(t *testing.T) {
	good := Direction{Sent: 5, Received: 5}
	for name, c := range map[string]struct {
		toHost, fromHost Direction
		ok               bool
	}{
		"all arrived":         {good, good, true},
		"arrived twice":       {Direction{Sent: 5, Received: 5, Duplicates: 1}, good, true},
		"lost to the host":    {Direction{Sent: 5, Received: 4, Lost: 1}, good, false},
		"lost from the host":  {good, Direction{Sent: 5, Received: 4, Lost: 1}, false},
		"damaged to the host": {Direction{Sent: 5, Received: 5, Strange: 1}, good, false},
		"damaged to a player": {good, Direction{Sent: 5, Received: 5, Strange: 1}, false},
	} {
		err := Report{Players: []Player{{ToHost: good, FromHost: good}, {ToHost: c.toHost, FromHost: c.fromHost}}}.verdict()
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
