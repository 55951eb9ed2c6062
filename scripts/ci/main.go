package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	var o options
	flag.BoolVar(&o.due, "due", false, "print what is due and why, and run nothing")
	flag.BoolVar(&o.nightly, "nightly", false, "run everything, with the long forms")
	flag.StringVar(&o.base, "base", os.Getenv("CI_BASE"), "`COMMIT` whose .ci/passed counts (default $CI_BASE, or else that of the work tree)")
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
	base         string         // empty: the file of the work tree counts
}

// planned is a stage and what was decided about it.
type planned struct {
	stage
	digest string    // of a suite's inputs
	why    string    // it runs; empty: it does not
	due    []planned // of a stage of packages, the suites that run
}

// args are what make is called with.
func (p planned) args(o options) []string {
	target := p.target
	if o.nightly && p.long != "" {
		target = p.long
	}
	args := strings.Fields(target)
	if p.in != nil {
		var dirs []string
		for _, one := range p.due {
			dirs = append(dirs, "./"+one.pkg)
		}
		args = append(args, p.packages+"="+strings.Join(dirs, " "))
	}
	return args
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
	plan, err := t.plan(o, stages)
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
	passed, err := readPassed(t.dir, o.base)
	if err != nil {
		return nil, err
	}
	for _, s := range stages {
		p, err := t.decide(o, s, passed)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
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

// decide decides whether a stage runs, and for which packages.
func (t *tree) decide(o options, s stage, passed map[string]pass) (p planned, err error) {
	p.stage = s
	if s.in != nil {
		return t.decidePackages(o, s, passed)
	}
	var files []string
	if p.digest, files, err = t.digest(s); err != nil {
		return p, err
	}
	switch {
	case o.only != nil:
		if o.only.MatchString(s.name) {
			p.why = "-only"
		}
	case o.nightly:
		p.why = "nightly"
	case s.nightly:
	case s.runsEachTime():
		p.why = "each time"
	case passed[s.name].digest != p.digest:
		p.why = t.reason(passed[s.name], files)
	}
	return p, nil
}

// decidePackages decides which packages of a stage run. With -only its own name stands for all.
func (t *tree) decidePackages(o options, s stage, passed map[string]pass) (p planned, err error) {
	p.stage = s
	dirs, err := s.in(t)
	if err != nil {
		return p, err
	}
	if o.only != nil && o.only.MatchString(s.name) {
		o.only = regexp.MustCompile("")
	}
	for _, dir := range dirs {
		one, err := t.decide(o, s.of(dir), passed)
		if err != nil {
			return p, err
		}
		if one.why != "" {
			p.due = append(p.due, one)
		}
	}
	const most = 3
	for i, one := range p.due {
		if i < most {
			p.why += fmt.Sprintf("; %s: %s", one.pkg, one.why)
		}
	}
	if p.why != "" {
		p.why = fmt.Sprintf("%d of %d packages%s", len(p.due), len(dirs), p.why)
	}
	if len(p.due) > most {
		p.why += "; …"
	}
	return p, nil
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

// runStages runs the plan: the stages that mostly wait one after another, and beside them the
// others. A stage that fails does not stop any.
func (t *tree) runStages(ctx context.Context, o options, plan []planned) error {
	begin := time.Now()
	var all runs
	var lanes sync.WaitGroup
	for _, waits := range []bool{true, false} {
		lanes.Go(func() {
			for _, p := range plan {
				if p.why != "" && p.waits == waits && ctx.Err() == nil {
					all.add(t, p, t.runStage(ctx, o, p))
				}
			}
		})
	}
	lanes.Wait()
	failed := printResults(all.results, time.Since(begin))
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case failed > 0:
		return fmt.Errorf("%d of %d stages failed", failed, len(all.results))
	}
	return all.err
}

// runs collects what both lanes have run.
type runs struct {
	mu      sync.Mutex // guards what follows, and the file of the suites that have passed
	results []result
	err     error
}

func (a *runs) add(t *tree, p planned, r result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.results = append(a.results, r)
	if r.err != nil {
		return
	}
	for _, one := range append(p.due, p) {
		a.err = cmp.Or(a.err, t.record(one))
	}
}

// runStage runs a make target, with CI=true: a test whose tools are missing fails. The output of one
// that waits comes at its end, and the others yield the processors to it.
func (t *tree) runStage(ctx context.Context, o options, p planned) result {
	args := p.args(o)
	command := append([]string{"make", "--no-print-directory"}, args...)
	var out bytes.Buffer
	var w io.Writer = &out
	if !p.waits {
		command, w = append([]string{"nice", "-n", "10"}, command...), os.Stdout
	}
	fmt.Fprintf(w, "\n=== %s: make %s\n", p.name, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = t.dir, append(os.Environ(), "CI=true")
	cmd.Stdout, cmd.Stderr = w, w
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	err := cmd.Run()
	r := result{name: p.name, wall: time.Since(start), err: err}
	if s := cmd.ProcessState; s != nil {
		r.cpu = s.UserTime() + s.SystemTime()
	}
	fmt.Fprintf(w, "=== %s: %.0f s, %v\n", p.name, r.wall.Seconds(), outcome(err))
	_, _ = out.WriteTo(os.Stdout)
	return r
}

func outcome(err error) string {
	if err == nil {
		return "passed"
	}
	return "FAILED: " + err.Error()
}

// printResults prints the minutes of each stage, and last how many passed. It returns how many failed.
func printResults(results []result, took time.Duration) (failed int) {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "minutes\tof processors\t stage\t")
	var cpu time.Duration
	for _, r := range results {
		if r.err != nil {
			failed++
		}
		cpu += r.cpu
		fmt.Fprintf(w, "%.1f\t%.1f\t %s\t %s\n", r.wall.Minutes(), r.cpu.Minutes(), r.name, outcome(r.err))
	}
	fmt.Fprintf(w, "%.1f\t%.1f\t all\t\n", took.Minutes(), cpu.Minutes())
	w.Flush()
	fmt.Printf("\n%d passed, %d failed\n", len(results)-failed, failed)
	return failed
}
