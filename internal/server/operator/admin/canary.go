package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

const (
	canaryPath = "/canary"
	// maxCanaries bounds the memory of reports to some 2 MB.
	maxCanaries = 100
	// canaryFor is how long the last report of a canary is kept: one that has gone is seen for a day.
	canaryFor = 24 * time.Hour
	// maxReport bounds a report in bytes, and maxReportText a text in it.
	maxReport     = 16 << 10
	maxReportText = 256
)

// Canaries keep the last report of each canary, ferry ping --every. The zero value is ready for use, by any goroutine.
type Canaries struct {
	mu     sync.Mutex // guards what follows
	byName map[string]operator.Canary
}

// add keeps a report. Error: operator.ErrQuery, for an invalid report and for one canary too many.
func (c *Canaries) add(report operator.CanaryReport, now time.Time) error {
	texts := []string{report.Name}
	for _, t := range report.Transports {
		texts = append(texts, t.Transport, t.Region, t.Failure)
		if t.Matches < 0 || t.Failed < 0 || t.Failed > t.Matches {
			return fmt.Errorf("%w: the report of a canary has %d failures in %d matches", operator.ErrQuery, t.Failed, t.Matches)
		}
	}
	for _, text := range texts {
		if len(text) > maxReportText || !printable.IsLine(text) {
			return fmt.Errorf("%w: a text in the report of a canary is longer than %d bytes, or not printable", operator.ErrQuery, maxReportText)
		}
	}
	if report.Name == "" {
		return fmt.Errorf("%w: the report of a canary has no name", operator.ErrQuery)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, old := range c.byName {
		if now.Sub(old.Reported) > canaryFor {
			delete(c.byName, name)
		}
	}
	if _, known := c.byName[report.Name]; !known && len(c.byName) == maxCanaries {
		return fmt.Errorf("%w: %d canaries report here already", operator.ErrQuery, maxCanaries)
	}
	if c.byName == nil {
		c.byName = make(map[string]operator.Canary)
	}
	c.byName[report.Name] = operator.Canary{CanaryReport: report, Reported: now}
	return nil
}

func (c *Canaries) all(now time.Time) []operator.Canary {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []operator.Canary{} // not null
	for _, x := range c.byName {
		if now.Sub(x.Reported) <= canaryFor {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b operator.Canary) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func canaryPages(mux *http.ServeMux, c *Canaries) {
	mux.HandleFunc("POST "+canaryPath, func(w http.ResponseWriter, r *http.Request) {
		var report operator.CanaryReport
		err := json.NewDecoder(io.LimitReader(r.Body, maxReport)).Decode(&report)
		if err != nil {
			err = fmt.Errorf("%w: the report of a canary cannot be read: %w", operator.ErrQuery, err)
		} else {
			err = c.add(report, time.Now())
		}
		writeAnswer(w, operator.ActionResult{ID: report.Name, Done: "reported"}, err)
	})
	showValue(mux, operator.ListCanaries, func() operator.Canaries { return operator.Canaries{Canaries: c.all(time.Now())} })
}
