package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/operator/capture"
	"github.com/ferryrelay/ferry/proto"
)

// ErrCaptureOff is returned by [RelayConfig].Capture if the settings do not allow it.
var ErrCaptureOff = errors.New("admin: captures are off, since they show what players send each other: set capture: true and reload")

const (
	// maxCaptureSeconds bounds a capture by a relay, and maxFleetSeconds one by an API
	// process, which waits 10 s for a relay at most.
	maxCaptureSeconds = 60
	maxFleetSeconds   = 8
	// maxCaptureBytes bounds the file of a relay, and maxFleetBytes that by an API process.
	maxCaptureBytes = 64 << 20
	maxFleetBytes   = 1<<20 - 64<<10
	captureFlush    = 200 * time.Millisecond
)

const captureType = "application/x-pcapng"

// errCaptureSize ends a capture whose file is full.
var errCaptureSize = errors.New("admin: the file is full")

type CaptureFunc func(ctx context.Context, match proto.AllocationID, each func(*privateapi.Captured) error) (lost uint64, err error)

// capturePages registers POST /allocations/NAME/capture?seconds=5, where NAME is the id of an
// allocation or a join code. It answers a pcapng file with the messages of the match.
func capturePages(mux *http.ServeMux, relay *RelayConfig) {
	capturing(mux, "POST /allocations/{name}/capture", maxCaptureSeconds, func(w http.ResponseWriter, r *http.Request, d time.Duration) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + time.Minute))
		serveCapture(w, r, relay, d, maxCaptureBytes)
	})
}

// capturing registers a page with the parameter seconds, of which there are at most so many.
func capturing(mux *http.ServeMux, page string, most int, serve func(http.ResponseWriter, *http.Request, time.Duration)) {
	mux.HandleFunc(page, func(w http.ResponseWriter, r *http.Request) {
		q := struct {
			Seconds int `query:"seconds"`
		}{5}
		err := operator.ParseQuery(r.URL.Query(), &q)
		if err == nil && (q.Seconds < 1 || q.Seconds > most) {
			err = fmt.Errorf("%w: seconds: %d is not a number from 1 up to %d", operator.ErrQuery, q.Seconds, most)
		}
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		serve(w, r, time.Duration(q.Seconds)*time.Second)
	})
}

// fleetCapture is the path of a capture for an API process, which gets pages only. It is not
// among the pages that anyone else can get, since a GET is not audited.
const fleetCapture = "/fleet-capture/"

func captureForFleet(mux *http.ServeMux, relay *RelayConfig) {
	capturing(mux, "GET "+fleetCapture+"{name}", maxFleetSeconds, func(w http.ResponseWriter, r *http.Request, d time.Duration) {
		serveCapture(w, r, relay, d, maxFleetBytes)
	})
}

func captureOfFleet(mux *http.ServeMux, fleet relays) {
	serve := func(w http.ResponseWriter, r *http.Request, d time.Duration) {
		page, err := askCapture(r, fleet, d)
		if err != nil {
			writeAnswer(w, nil, err)
			return
		}
		if page.Status == http.StatusOK {
			captureHeader(w, r)
		}
		writePage(w, &page, captureType)
	}
	capturing(mux, "POST /allocations/{name}/capture", maxFleetSeconds, serve)
	capturing(mux, "POST /nodes/{node}/allocations/{name}/capture", maxFleetSeconds, serve)
}

func askCapture(r *http.Request, fleet relays, seconds time.Duration) (page operator.Page, err error) {
	name := r.PathValue("name")
	target := fleetCapture + url.PathEscape(name) + "?seconds=" + fmt.Sprint(int(seconds/time.Second))
	relay := ""
	if node := r.PathValue("node"); node != "" {
		n, err := relayNode(r.Context(), fleet, node)
		if err != nil {
			return page, err
		}
		relay = n.ID
	} else {
		err := withTimeout(r.Context(), func(ctx context.Context) error {
			found, err := findInFleet(ctx, fleet, name)
			relay = found.Relay
			return err
		})
		if err != nil {
			return page, err
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), seconds+fleetCaptureMargin)
	defer cancel()
	return fleet.Page(ctx, relay, target)
}

// fleetCaptureMargin is the time of the call besides the capture.
const fleetCaptureMargin = 1500 * time.Millisecond

func captureHeader(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if _, err := proto.ParseAllocationID(name); err != nil {
		name = "match" // A join code is a secret of the match while it lives.
	}
	w.Header().Set("Content-Type", captureType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.pcapng"`)
}

func serveCapture(w http.ResponseWriter, r *http.Request, relay *RelayConfig, d time.Duration, most int) {
	id, err := allocationNamed(relay.History, r.PathValue("name"))
	if err != nil {
		writeAnswer(w, nil, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), d)
	defer cancel()
	log := logOf(relay.Logger)
	file := captureFile{w: w, r: r, left: most, comment: fmt.Sprintf("match of %v at %s, %v", id, relay.Title, d)}
	log.Info("operator: a capture was requested", "allocation", id.String(), "seconds", int(d/time.Second), "from", r.RemoteAddr)
	lost, err := relay.Capture(ctx, id, file.write)
	if errors.Is(err, errCaptureSize) {
		err = nil
	}
	if err == nil {
		err = file.begin()
	}
	if file.writer == nil {
		log.Warn("operator: a capture was refused", "allocation", id.String(), "error", err)
		writeAnswer(w, nil, err)
		return
	}
	if closing := file.writer.Close(lost); err == nil {
		err = closing
	}
	if err != nil && r.Context().Err() == nil {
		log.Warn("operator: a capture ended early", "allocation", id.String(), "error", err)
	}
}

// captureFile is a response that begins with the first message, so that an error before has
// a status.
type captureFile struct {
	w       http.ResponseWriter
	r       *http.Request
	comment string
	writer  *capture.Writer // nil: it has not begun
	left    int             // bytes
	flushed time.Time
}

func (f *captureFile) begin() (err error) {
	if f.writer != nil {
		return nil
	}
	captureHeader(f.w, f.r)
	f.writer, err = capture.NewWriter(f.w, f.comment)
	return err
}

// packetOverhead is what a message takes in a file besides its bytes, at most.
const packetOverhead = 256

func (f *captureFile) write(m *privateapi.Captured) error {
	if err := f.begin(); err != nil {
		return err
	}
	if f.left -= len(m.Message) + packetOverhead; f.left < packetOverhead {
		return errCaptureSize
	}
	if err := f.writer.Write(m); err != nil {
		return err
	}
	if m.Time.Sub(f.flushed) < captureFlush {
		return nil
	}
	f.flushed = m.Time
	if err := f.writer.Flush(); err != nil {
		return err
	}
	if err := http.NewResponseController(f.w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
