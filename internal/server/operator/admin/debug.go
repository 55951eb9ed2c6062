package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"runtime/trace"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	// profileWithin is how long a profile may take.
	profileWithin = 5 * time.Minute
	// flightAge and flightBytes bound what the flight recorder keeps: a little more than a
	// stall lasts, in the memory of a few thousand allocations.
	flightAge   = 10 * time.Second
	flightBytes = 16 << 20
)

var (
	errFlightOff = errors.New("admin: the flight recorder is off: PUT /debug/flight-recorder?state=on turns it on")
	errFlight    = errors.New("admin: the flight recorder does not start, since another one runs")
)

// debugPages registers the profiles of net/http/pprof, and the flight recorder: GET returns
// the execution trace of the last seconds, for go tool trace; PUT turns it on or off. It is
// off at first, since it costs processor time.
func debugPages(mux *http.ServeMux, flight *Flight) {
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			// A profile may take longer than other responses. Package pprof refuses that if it
			// finds the server's timeout in the context.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(profileWithin))
			h(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, nil)))
		})
	}
	mux.HandleFunc("GET /debug/flight-recorder", func(w http.ResponseWriter, _ *http.Request) {
		content, err := flight.content()
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", `attachment; filename="ferry.trace"`)
		_, _ = w.Write(content) // An error means that the client has disconnected.
	})
	mux.HandleFunc("PUT /debug/flight-recorder", func(w http.ResponseWriter, r *http.Request) {
		on, err := parseOnOff(r.URL.Query())
		if err == nil {
			err = flight.set(on)
		}
		writeAnswer(w, operator.FlightRecorder{On: on}, err)
	})
}

// Flight is the execution trace of the last seconds, while it is on. Any goroutine may use it.
type Flight struct {
	mu       sync.Mutex // guards recorder
	recorder *trace.FlightRecorder
}

func (f *Flight) set(on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case on && f.recorder == nil:
		recorder := trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: flightAge, MaxBytes: flightBytes})
		if err := recorder.Start(); err != nil {
			return fmt.Errorf("%w: %w", errFlight, err)
		}
		f.recorder = recorder
	case !on && f.recorder != nil:
		f.recorder.Stop()
		f.recorder = nil
	}
	return nil
}

// Stop turns it off.
func (f *Flight) Stop() { _ = f.set(false) } // Only a start can fail.

func (f *Flight) content() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.recorder == nil {
		return nil, errFlightOff
	}
	var b bytes.Buffer
	_, err := f.recorder.WriteTo(&b)
	return b.Bytes(), err
}
