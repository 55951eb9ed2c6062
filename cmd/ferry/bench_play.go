package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
)

// progress tells of each second and keeps it, for a run that is interrupted.
// The generator's observer and the command use it, under mu.
type progress struct {
	w  io.Writer // nil: says nothing
	mu sync.Mutex

	seconds []bench.Second // of the latest run
}

func (p *progress) tell(s bench.Second) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.seconds); n > 0 && s.At <= p.seconds[n-1].At {
		p.seconds = nil // The next step of a search began.
	}
	p.seconds = append(p.seconds, s)
	if p.w == nil {
		return
	}
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
	fmt.Fprintf(p.w, "%4d s  offered %s  sent %s  delivered %s  p50 %s  p99 %s  max %s%s\n", s.At+1,
		count.Format(float64(s.Offered)), count.Format(float64(s.Sent)), count.Format(float64(s.Delivered)),
		span(s.P50), span(s.P99), span(s.Max), of)
}

// partial makes what can be made of a run that was interrupted: its seconds,
// and what follows from those after the warm-up.
func (p *progress) partial(cfg bench.Config, dialect string) bench.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	players := 1
	if cfg.Shape == bench.ShapeStar {
		players = cfg.Players
	}
	r := bench.Result{
		Version: bench.ResultVersion, Name: cfg.Name, Command: cfg.Command, Commit: cfg.Commit, Started: time.Now().UTC(),
		Machine: bench.ThisMachine(), Dialect: dialect, Limits: cfg.Limits, Seconds: p.seconds,
		Load: bench.Load{Shape: cfg.Shape, Direction: cfg.Direction, Align: cfg.Align, Matches: cfg.Matches, Players: players, Flows: flows(&cfg),
			Rate: cfg.Rate, Window: cfg.Window, Payload: cfg.Payload, Duration: cfg.Duration, Warmup: max(cfg.Warmup, 0),
			BindRate: cfg.BindRate, Pinned: cfg.Pin, CPU: cfg.CPU},
		Interrupted: true, Limit: bench.LimitNone,
	}
	measured := 0.0
	for _, s := range p.seconds {
		if s.At < 0 {
			continue
		}
		measured++
		r.Offered, r.Sent, r.Delivered = r.Offered+s.Offered, r.Sent+s.Sent, r.Delivered+s.Delivered
	}
	r.LimitReason = fmt.Sprintf("It was stopped after %.0f of %.0f measured seconds", measured, cfg.Duration.Seconds())
	if measured > 0 {
		r.OfferedRate, r.DeliveredRate = float64(r.Offered)/measured, float64(r.Delivered)/measured
		r.Started = r.Started.Add(-time.Duration(measured * float64(time.Second)))
	}
	return r
}

// outcome is what a run or a search came to.
type outcome struct {
	best    bench.Result   // the one run, or the best of a search
	runs    []bench.Result // all of them, best first
	stopped bool           // before its end
}

// play makes the run, or the runs of a search, and reports.
func (s streams) play(ctx context.Context, j job) error {
	p := &progress{}
	if j.progress {
		p.w = s.stderr
		fmt.Fprintf(s.stderr, "setting up %s %s ...\n", j.dialect.Name(), j.cfg.Shape)
	}
	j.cfg.Progress = p.tell
	o, err := j.run(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	if err != nil {
		o.stop(p, j)
		fmt.Fprintln(s.stderr, "interrupted: this is what was seen until then")
	}
	if len(j.findMax) > 0 && o.best.Sent > 0 && !o.best.Interrupted {
		fmt.Fprintf(s.stdout, "%s is the highest rate that meets all conditions, of %d runs.\n\n", report.UnitRate.Format(o.best.Load.Rate), len(o.runs))
	}
	return errors.Join(report.Text(s.stdout, o.best), j.write(o.runs), j.verdict(o))
}

func (j job) run(ctx context.Context) (o outcome, err error) {
	if len(j.findMax) == 0 {
		o.best, err = bench.Run(ctx, j.cfg, j.dialect)
		o.runs = []bench.Result{o.best}
		return o, err
	}
	best, all, err := bench.FindMax(ctx, j.cfg, j.dialect, j.findMax)
	return outcome{best: best, runs: bestFirst(best, all)}, err
}

// stop completes an outcome that was interrupted. The best run of a search is
// whole; of a single run there are only the seconds.
func (o *outcome) stop(p *progress, j job) {
	o.stopped = true
	if o.best.Version == 0 {
		o.best = p.partial(j.cfg, j.dialect.Name())
		o.runs = []bench.Result{o.best}
	}
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
	case "delivered":
		return report.UnitRate.Format(v)
	}
	if v == 0 {
		return "not measured"
	}
	return report.UnitTime.Format(v)
}
