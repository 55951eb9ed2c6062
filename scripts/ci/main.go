package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	var o options
	flag.BoolVar(&o.due, "due", false, "print what is due and why, and run nothing")
	flag.BoolVar(&o.nightly, "nightly", false, "run everything, with the long forms")
	only := flag.String("only", "", "run the stages whose names this regular expression matches, due or not")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *only != "" {
		o.only, err = regexp.Compile(*only)
	}
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ci:", err)
		os.Exit(1)
	}
}

type options struct {
	due, nightly bool
	only         *regexp.Regexp // nil: none
}

// planned is a stage and what was decided about it.
type planned struct {
	stage
	digest string // of a suite's inputs
	why    string // it runs; empty: it does not
}

func run(ctx context.Context, o options) error {
	dir, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	t, err := readTree(dir)
	if err != nil {
		return err
	}
	fuzz, err := t.fuzzSuites()
	if err != nil {
		return err
	}
	plan, err := t.plan(o, slices.Concat(stages, fuzz))
	if err != nil {
		return err
	}
	printPlan(plan)
	if o.due {
		return nil
	}
	return t.runStages(ctx, o, plan)
}

// plan decides which stages run.
func (t *tree) plan(o options, stages []stage) (plan []planned, err error) {
	passed, err := readPassed(t.dir)
	if err != nil {
		return nil, err
	}
	for _, s := range stages {
		p := planned{stage: s}
		var files []string
		if p.digest, files, err = t.digest(s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		switch {
		case o.only != nil:
			if o.only.MatchString(s.name) {
				p.why = "-only"
			}
		case o.nightly:
			p.why = "nightly"
		case s.nightly:
		case s.roots == nil:
			p.why = "each time"
		case passed[s.name].digest != p.digest:
			p.why = t.reason(passed[s.name], files)
		}
		plan = append(plan, p)
	}
	for i := range plan {
		whole := slices.IndexFunc(plan, func(p planned) bool { return p.name == plan[i].partOf })
		if o.only == nil && whole >= 0 && plan[whole].why != "" {
			plan[i].why = ""
		}
	}
	return plan, nil
}

func printPlan(plan []planned) {
	var not []string
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, p := range plan {
		if p.why == "" {
			not = append(not, p.name)
		} else {
			fmt.Fprintf(w, "due: %s\t%s\n", p.name, p.why)
		}
	}
	w.Flush()
	if not != nil {
		fmt.Printf("not due: %s\n", strings.Join(not, ", "))
	}
}

// result is what a stage took.
type result struct {
	name      string
	wall, cpu time.Duration // cpu is that of the command and all its children
	err       error
}

// runStages runs the plan. A stage that fails does not stop the others.
func (t *tree) runStages(ctx context.Context, o options, plan []planned) error {
	var results []result
	failed := 0
	for _, p := range plan {
		if p.why == "" || ctx.Err() != nil {
			continue
		}
		target := p.target
		if o.nightly && p.long != "" {
			target = p.long
		}
		r := t.runStage(ctx, p.name, target)
		if r.err != nil {
			failed++
		} else if err := t.record(p); err != nil {
			return err
		}
		results = append(results, r)
	}
	printResults(results)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d stages failed", failed, len(results))
	}
	return nil
}

// runStage runs a make target, with CI=true: a test whose tools are missing fails.
func (t *tree) runStage(ctx context.Context, name, target string) result {
	fmt.Printf("\n=== %s: make %s\n", name, target)
	cmd := exec.CommandContext(ctx, "make", append([]string{"--no-print-directory"}, strings.Fields(target)...)...)
	cmd.Dir, cmd.Env = t.dir, append(os.Environ(), "CI=true")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	err := cmd.Run()
	r := result{name: name, wall: time.Since(start), err: err}
	if s := cmd.ProcessState; s != nil {
		r.cpu = s.UserTime() + s.SystemTime()
	}
	fmt.Printf("=== %s: %.0f s, %v\n", name, r.wall.Seconds(), outcome(err))
	return r
}

func outcome(err error) string {
	if err == nil {
		return "passed"
	}
	return "FAILED: " + err.Error()
}

// printResults prints the minutes of each stage, and last how many passed.
func printResults(results []result) {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "minutes\tof processors\t stage\t")
	var wall, cpu time.Duration
	failed := 0
	for _, r := range results {
		if r.err != nil {
			failed++
		}
		wall, cpu = wall+r.wall, cpu+r.cpu
		fmt.Fprintf(w, "%.1f\t%.1f\t %s\t %s\n", r.wall.Minutes(), r.cpu.Minutes(), r.name, outcome(r.err))
	}
	fmt.Fprintf(w, "%.1f\t%.1f\t all\t\n", wall.Minutes(), cpu.Minutes())
	w.Flush()
	fmt.Printf("\n%d passed, %d failed\n", len(results)-failed, failed)
}
