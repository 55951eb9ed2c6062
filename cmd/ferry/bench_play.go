package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
)

// progress tells of each second and of each step of a search. The generator's
// observer and the command use it, under mu.
type progress struct {
	w  io.Writer
	mu sync.Mutex
}

func (p *progress) second(s bench.Second) {
	of := ""
	if s.At < 0 {
		of = "  warm-up"
	}
	count, span := report.UnitCount, func(d time.Duration) string {
		if s.Delivered == 0 {
			return "–"
		}
		return report.UnitTime.Format(float64(d))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%4d s  offered %s  sent %s  delivered %s  p50 %s  p99 %s  max %s%s\n", s.At+1,
		count.Format(float64(s.Offered)), count.Format(float64(s.Sent)), count.Format(float64(s.Delivered)),
		span(s.P50), span(s.P99), span(s.Max), of)
}

func (p *progress) tried(r bench.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.w, report.Step(r))
}

// outcome is what a run or a search came to.
type outcome struct {
	best    bench.Result   // the one run, or the best of a search
	runs    []bench.Result // all of them, best first
	stopped bool           // before its end
}

// play makes the run, or the runs of a search, and reports.
func (s streams) play(ctx context.Context, j job) error {
	twoProcessors()
	if j.progress {
		p := &progress{w: s.stderr}
		j.cfg.Progress, j.cfg.Tried = p.second, p.tried
		fmt.Fprintf(s.stderr, "setting up %s %s ...\n", j.dialect.Name(), j.cfg.Shape)
	}
	o, err := j.run(ctx)
	switch {
	case errors.Is(err, bench.ErrNoRate):
		return errors.Join(report.Steps(s.stdout, o.runs), j.write(o.runs), err)
	case err != nil && (ctx.Err() == nil || len(o.runs) == 0):
		return err
	case err != nil:
		o.stopped = true
		fmt.Fprintln(s.stderr, "interrupted: this is what was seen until then")
	}
	if err = report.Text(s.stdout, o.best); len(j.findMax) > 0 {
		fmt.Fprintln(s.stdout)
		err = errors.Join(err, report.Steps(s.stdout, o.runs))
	}
	return errors.Join(err, j.write(o.runs), j.verdict(o))
}

// twoProcessors gives Go's scheduler a processor besides that of the thread of
// the generator or of the null relay, which never lets go of its own: under
// taskset(1) there would be no other, and what runs beside it would wait for
// 10 ms each time.
func twoProcessors() {
	if runtime.GOMAXPROCS(0) < 2 {
		runtime.GOMAXPROCS(2)
	}
}

// run returns with an error what there is in spite of it.
func (j job) run(ctx context.Context) (outcome, error) {
	if len(j.findMax) == 0 {
		r, err := bench.Run(ctx, j.cfg, j.dialect)
		return newOutcome(r, nil), err
	}
	best, all, err := bench.FindMax(ctx, j.cfg, j.dialect, j.findMax)
	return newOutcome(best, all), err
}

// newOutcome leaves out results that are none.
func newOutcome(best bench.Result, all []bench.Result) outcome {
	if best.Version == 0 {
		return outcome{runs: all}
	}
	return outcome{best: best, runs: bestFirst(best, all)}
}

// bestFirst puts what a search found before what it tried: the other runs in
// their order.
func bestFirst(best bench.Result, all []bench.Result) []bench.Result {
	runs := []bench.Result{best}
	for _, r := range all {
		if !r.Started.Equal(best.Started) {
			runs = append(runs, r)
		}
	}
	return runs
}

// write makes the files that were asked for.
func (j job) write(runs []bench.Result) (err error) {
	if j.json != "" {
		err = report.WriteFile(j.json, runs...)
	}
	if j.html != "" {
		err = errors.Join(err, report.WriteHTMLFile(j.html, runs))
	}
	return err
}

// verdict is an error that names every condition that does not hold. What was
// stopped has met none.
func (j job) verdict(o outcome) error {
	if len(j.fail) > 0 && o.stopped {
		return errors.New("the run was interrupted: --fail is not decided")
	}
	var texts []string
	for _, t := range bench.Missed(j.fail, &o.best) {
		v, _ := t.Check(&o.best)
		texts = append(texts, fmt.Sprintf("%s does not hold: %s", t, measured(t, v)))
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// measured writes the value of a threshold in its unit.
func measured(t bench.Threshold, v float64) string {
	switch t.Name {
	case "loss", "dup", "reorder":
		return report.UnitShare.Format(v)
	case "delivered", "binds", "allocations":
		return report.UnitRate.Format(v)
	}
	if v == 0 {
		return "not measured"
	}
	return report.UnitTime.Format(v)
}
