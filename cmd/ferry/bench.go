package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/bench/report"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/benchrig/figures"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/urfave/cli/v3"
)

// defaultRate is what is offered when nothing else is said, datagrams/s.
const defaultRate = 10_000

// defaultMatches is for --traffic.
const defaultMatches = 20

func benchCommand(s streams) *cli.Command {
	c := s.command(&cli.Command{
		Name:  "bench",
		Usage: "generate load for a relay and measure delivery, latency and CPU time",
		Description: `Opens many endpoints on this machine, lets them find one another over the API as
games do, and sends datagrams on a fixed schedule. Latency counts from the time
at which a datagram was meant to be sent, and what is lost is infinitely late.
Ctrl-C ends the run and reports what was seen until then.

The exit code is 0 when every condition of --fail holds. A datagram that arrived changed
or at another endpoint, and an endpoint that is gone after --shape idle, always
fail. The exit code is 1 when a condition does not hold, or the process of --server-pid
ended. It is 2 when there is no verdict: no run could be made, or it is invalid and shows
nothing about the server: the generator was late or dropped datagrams itself, the machine
was disturbed, or the run was interrupted. It is 64 for a wrong command line.

A load generator is a flood: only loopback is allowed without --allow-remote.

With --dialect turn each player has an allocation on a TURN server, over UDP or DTLS, and a
channel to its host, which is a plain peer. coturn permits peers on loopback with
--allow-loopback-peers only.

If the relay is restarted during a run, endpoints bind again as clients do. The
report says how many and how fast, and how long each endpoint got nothing.

Examples:
   ferry dev                                        in another terminal
   ferry bench
   ferry bench --matches 100 --rate 6000 --duration 5s --html report.html
   ferry bench --shape star --matches 20 --players 10 --rate 20000 --server-pid $(pidof ferry)
   ferry bench --closed 4 --admin http://127.0.0.1:7778 --profile dev --json closed.json
   ferry bench --find-max 'loss<0.1%' --duration 2s
   ferry bench --rate 5000 --fail 'p99<5ms,loss<0.1%'
   ferry bench --rate 5000 --bind-rate 1000 --fail 'binds>=990'
   ferry bench --shape churn --churn-rate 20 --duration 5s
   ferry bench --traffic movement-20p-30hz --matches 50
   ferry bench --dialect direct --rate 20000       no relay: what this machine costs
   ferry bench --api http://10.0.0.7:7777 --allow-remote --sources 10.0.0.8/32 --matches 50
   ferry bench --transport dtls
   ferry bench --dialect turn --target 127.0.0.1:3478 --turn-user USER:PASSWORD
   ferry bench --transport wss --family ipv6 --api https://relay.example.org:7777 --allow-remote --sources 2001:db8::8/128

   ferry bench null --udp 127.0.0.1:7790            a relay that looks nothing up
   ferry bench --dialect swap --target 127.0.0.1:7790 --json null.json
   ferry bench --json ferry.json
   ferry bench compare null.json ferry.json`,
		UsageText: "ferry bench [options]\nferry bench compare A.json B.json [C.json ...]\nferry bench gobench A.json [B.json ...]\nferry bench null [options]",
		Flags:     benchFlags(),
		Action:    s.runBench,
	})
	c.Commands = []*cli.Command{
		benchCompareCommand(s), benchGoBenchCommand(s), benchNullCommand(s),
	}
	return c
}

// job is a run as the flags describe it.
type job struct {
	cfg      bench.Config
	dialect  bench.Dialect
	findMax  []bench.Threshold
	fail     []bench.Threshold
	files    files
	progress bool
}

// newJob reads the flags. Every error is one of usage.
func newJob(cmd *cli.Command) (j job, err error) {
	j = job{cfg: benchConfig(cmd), progress: !cmd.Bool("quiet")}
	if j.cfg.Sources, err = sources(cmd.String("sources")); err != nil {
		return job{}, err
	}
	for _, name := range []string{"relay", "target"} {
		if relay, err := addrFlag(cmd, name); err == nil && relay.IsValid() && !cmd.IsSet("family") && !cmd.IsSet("sources") {
			j.cfg.Family = benchrig.FamilyOf(relay.Addr())
		}
	}
	if err := setRate(&j.cfg, cmd); err != nil {
		return job{}, err
	}
	if j.dialect, err = newDialect(cmd); err != nil {
		return job{}, err
	}
	if err := rejectIgnored(cmd, &j.cfg); err != nil {
		return job{}, err
	}
	if j.files, err = newFiles(cmd); err != nil {
		return job{}, err
	}
	if j.cfg.Metrics, err = relayMetrics(cmd); err != nil {
		return job{}, err
	}
	if j.findMax, err = bench.ParseThresholds(cmd.String("find-max")); err != nil {
		return job{}, fmt.Errorf("--find-max: %w", err)
	}
	if j.fail, err = bench.ParseThresholds(cmd.String("fail")); err != nil {
		return job{}, fmt.Errorf("--fail: %w", err)
	}
	if cmd.IsSet("find-max") && len(j.findMax) == 0 {
		return job{}, errors.New("--find-max: no condition")
	}
	return j, nil
}

// sources reads --sources; the zero prefix is the default of package bench.
func sources(text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("--sources %q is not a prefix such as 10.128.0.0/12, or 192.0.2.7/32 for one address", text)
	}
	return p, nil
}

func benchConfig(cmd *cli.Command) bench.Config {
	cfg := bench.Config{
		Load: bench.Load{
			Shape: cmd.String("shape"), Direction: cmd.String("direction"), Matches: cmd.Int("matches"), Players: cmd.Int("players"),
			Transport: cmd.String("transport"), Family: cmd.String("family"), Traffic: cmd.String("traffic"),
			Window: cmd.Int("closed"), Payload: cmd.Int("payload"), BindRate: cmd.Float("bind-rate"),
			Duration: cmd.Duration("duration"), Warmup: cmd.Duration("warmup"), Drain: cmd.Duration("drain"),
			Keepalive: cmd.Duration("keepalive"), SessionLength: cmd.Duration("churn-play"), ReplaceRate: cmd.Float("replace-rate"),
			Pinned: cmd.Int("pin") >= 0, CPU: max(cmd.Int("pin"), 0),
		},
		Label: bench.Label{
			Name: cmd.String("name"), Limits: cmd.String("profile"), Commit: readBuild().revision, Command: commandLine(cmd),
		},
		AllowRemote: cmd.Bool("allow-remote"),
		ServerPID:   cmd.Int("server-pid"),
	}
	if cfg.Traffic != "" { // It decides the shape.
		cfg.Shape, cfg.Direction = "", ""
		if !cmd.IsSet("matches") {
			cfg.Matches = defaultMatches
		}
	}
	if cfg.Shape == "churn" {
		cfg.SessionRate = cmd.Float("churn-rate")
	}
	switch {
	case cfg.Label.Limits != "":
	case cmd.String("dialect") == "ferry" || cmd.String("dialect") == "turn":
		cfg.Label.Limits = serverLimits(cfg.ServerPID)
	default:
		cfg.Label.Limits = "none"
	}
	// 0 means a default there, and none here.
	if cfg.ReplaceRate > 0 && !cmd.IsSet("drain") {
		cfg.Drain = 0
	}
	if cfg.Warmup == 0 {
		cfg.Warmup = bench.None
	}
	if cfg.Keepalive == 0 {
		cfg.Keepalive = bench.None
	}
	return cfg
}

// setRate turns --rate and --closed into one pace.
func setRate(cfg *bench.Config, cmd *cli.Command) error {
	quiet := cfg.Shape == "churn" || cfg.Shape == "idle"
	switch {
	case cmd.IsSet("rate") && cmd.IsSet("closed"):
		return errors.New("--rate and --closed exclude each other")
	case cmd.IsSet("rate"):
		cfg.Rate = cmd.Float("rate")
	case cmd.IsSet("closed") || quiet || cmd.IsSet("find-max") || cfg.Traffic != "":
	default:
		cfg.Rate = defaultRate
	}
	return nil
}

func newDialect(cmd *cli.Command) (bench.Dialect, error) {
	cfg := bench.DialectConfig{
		Name: cmd.String("dialect"), BaseURL: cmd.String("api"), Region: cmd.String("region"), AllowRemote: cmd.Bool("allow-remote"),
	}
	var err error
	switch cfg.Name {
	case "swap", "turn":
		cfg.Relay, err = targetFlag(cmd)
		cfg.User, cfg.Password, _ = strings.Cut(cmd.String("turn-user"), ":")
	case "ferry":
		var errRelay, errTrust error
		cfg.Token, err = readToken(cmd)
		cfg.Relay, errRelay = addrFlag(cmd, "relay")
		cfg.TLS, errTrust = trust(cmd)
		err = errors.Join(err, errRelay, errTrust)
	}
	if err != nil {
		return bench.Dialect{}, err
	}
	return bench.NewDialect(cfg)
}

// rejectIgnored returns an error for a flag that has no effect in this run.
func rejectIgnored(cmd *cli.Command, cfg *bench.Config) error {
	dialect, shape := cmd.String("dialect"), cfg.Shape
	for _, c := range []struct {
		used  bool
		why   string
		flags []string
	}{
		{dialect == "ferry", "--dialect " + dialect, []string{"api", "token", "token-file", "region", "relay"}},
		{dialect == "swap" || dialect == "turn", "--dialect " + dialect, []string{"target"}},
		{dialect == "turn", "--dialect " + dialect, []string{"turn-user"}},
		{dialect == "ferry" || cmd.IsSet("admin"), "--dialect " + dialect, []string{"ca"}},
		{cmd.IsSet("admin"), "no --admin", []string{"admin-token-file"}},
		{cfg.Traffic != "" || shape == "star" || shape == "idle", "--shape " + shape,
			[]string{"players"}},
		{shape == "churn", "--shape " + shape, []string{"churn-rate", "churn-play"}},
		{cfg.Traffic == "", "--traffic", []string{"shape", "direction", "payload", "closed", "replace-rate"}},
	} {
		for _, name := range c.flags {
			if !c.used && cmd.IsSet(name) {
				return fmt.Errorf("--%s has no effect with %s", name, c.why)
			}
		}
	}
	return nil
}

// relayMetrics returns what reads the metrics of --admin, nil without it.
func relayMetrics(cmd *cli.Command) (func(context.Context) (string, error), error) {
	if !cmd.IsSet("admin") {
		return nil, nil
	}
	c, err := ctl.New(ctl.Config{URL: cmd.String("admin"), TokenFile: cmd.String("admin-token-file"), CAFile: cmd.String("ca")})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (string, error) {
		defer c.Close()
		return c.Text(ctx, ctl.Call{Path: "/metrics"})
	}, nil
}

// addrFlag reads an address with its port; without the flag it is the zero one.
func addrFlag(cmd *cli.Command, name string) (netip.AddrPort, error) {
	text := cmd.String(name)
	if text == "" {
		return netip.AddrPort{}, nil
	}
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return addr, fmt.Errorf("--%s: %w", name, err)
	}
	return addr, nil
}

func targetFlag(cmd *cli.Command) (netip.AddrPort, error) {
	target, err := addrFlag(cmd, "target")
	if err == nil && !target.IsValid() {
		err = fmt.Errorf("--dialect %s needs --target", cmd.String("dialect"))
	}
	return target, err
}

func readToken(cmd *cli.Command) (string, error) {
	file := cmd.String("token-file")
	switch {
	case file == "":
		return cmd.String("token"), nil
	case cmd.IsSet("token"):
		return "", errors.New("--token and --token-file exclude each other")
	}
	token, err := config.ReadSecret(file)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// commandLine repeats what was asked for, for the report, without the token and credentials.
func commandLine(cmd *cli.Command) []string {
	line := strings.Fields(cmd.FullName())
	for _, f := range cmd.Flags {
		name := f.Names()[0]
		switch {
		case !cmd.IsSet(name) || name == "help":
		case name == "token" || name == "turn-user":
			line = append(line, "--"+name+"=[hidden]")
		default:
			line = append(line, fmt.Sprintf("--%s=%v", name, cmd.Value(name)))
		}
	}
	return line
}

func (s streams) runBench(ctx context.Context, cmd *cli.Command) error {
	j, err := newJob(cmd)
	if err != nil {
		return usage(cmd, err)
	}
	err = s.runJob(ctx, j)
	if errors.Is(err, bench.ErrConfig) || errors.Is(err, bench.ErrRemote) {
		return usage(cmd, err)
	}
	return err
}

// progress tells of each second and of each step of a search. The generator's
// observer and the command use it, under mu.
type progress struct {
	w      io.Writer
	before string // what is done before the measured interval
	mu     sync.Mutex
}

func (p *progress) second(s bench.Second) {
	of := ""
	if s.At < 0 {
		of = "  " + p.before
	}
	count, span := figures.Count, func(d time.Duration) string {
		if d == 0 {
			return "–"
		}
		return figures.Time.Format(float64(d))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%4d s  offered %s  sent %s  delivered %s  p50 %s  p99 %s  max %s%s\n", s.At+1,
		count.Format(float64(s.Offered)), count.Format(float64(s.Sent)), count.Format(float64(s.Delivered)),
		span(s.P50), span(s.P99), span(s.Max), of)
}

func (p *progress) step(r bench.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.w, report.Step(r))
}

type outcome struct {
	best bench.Result   // the one run, or the best of a search
	runs []bench.Result // all of them, best first
}

func (s streams) runJob(ctx context.Context, j job) error {
	ensureTwoProcessors()
	results := s.stdout
	if j.files.onStdout() {
		s.stdout = s.stderr
	}
	if j.progress {
		p := &progress{w: s.stderr, before: "warm-up"}
		if j.cfg.Shape == "idle" {
			p.before = "idle"
		}
		j.cfg.OnSecond, j.cfg.OnRun = p.second, p.step
		load := j.cfg.Shape
		if t := j.cfg.Traffic; t != "" {
			load = "traffic " + t
		}
		fmt.Fprintf(s.stderr, "setting up %s %s ...\n", j.dialect.Name(), load)
	}
	o, err := j.run(ctx)
	switch {
	case errors.Is(err, bench.ErrNoRate), errors.Is(err, bench.ErrNoValidRun):
		if errors.Is(err, bench.ErrNoRate) {
			err = gateError{err}
		}
		return errors.Join(report.Steps(s.stdout, o.runs), j.files.write(results, o.runs), err)
	case errors.Is(err, bench.ErrServerEnded) && len(o.runs) > 0:
		return errors.Join(j.writeText(s.stdout, o), j.files.write(results, o.runs), gateError{err})
	case err != nil && (ctx.Err() == nil || len(o.runs) == 0):
		return err
	case err != nil:
		fmt.Fprintln(s.stderr, "interrupted: this is what was seen until then")
	}
	return errors.Join(j.writeText(s.stdout, o), j.files.write(results, o.runs), j.checkThresholds(o))
}

func (j job) writeText(w io.Writer, o outcome) error {
	err := report.Text(w, o.best)
	if len(j.findMax) > 0 {
		fmt.Fprintln(w)
		err = errors.Join(err, report.Steps(w, o.runs))
	}
	return err
}

// ensureTwoProcessors gives Go's scheduler a processor besides that of the thread of
// the generator or of the null relay, which never lets go of its own: under
// taskset(1) there would be no other, and what runs beside it would wait for
// 10 ms each time.
func ensureTwoProcessors() {
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

// newOutcome puts what a search found, if anything, before the other runs in their order.
func newOutcome(best bench.Result, all []bench.Result) outcome {
	if best.Version == 0 {
		return outcome{runs: all}
	}
	others := slices.DeleteFunc(slices.Clone(all), func(r bench.Result) bool { return r.Started.Equal(best.Started) })
	return outcome{best: best, runs: append([]bench.Result{best}, others...)}
}

// errInvalidRun says that a run shows nothing about the server.
var errInvalidRun = errors.New("no verdict, the run is invalid")

// errGate is wrapped by the errors that are verdicts: a condition does not hold.
var errGate = errors.New("a condition does not hold")

type gateError struct{ reason error }

func (e gateError) Error() string   { return e.reason.Error() }
func (e gateError) Unwrap() []error { return []error{errGate, e.reason} }

// checkThresholds is an error that names every condition that does not hold. An invalid run decides none, but what
// a relay changed or gave to others is its fault in any run, and the rate that a search found is proof enough.
func (j job) checkThresholds(o outcome) error {
	conditions, s := j.fail, o.best.Search
	decides := o.best.Valid || s != nil && s.Found != nil && len(conditions) == 0
	if !decides {
		conditions = nil
	}
	all := bench.Missed(conditions, &o.best)
	if !decides && len(all) == 0 {
		return fmt.Errorf("%w: %s", errInvalidRun, o.best.InvalidReason())
	}
	var texts []string
	for _, t := range all {
		v, _ := t.Check(&o.best)
		texts = append(texts, fmt.Sprintf("%s does not hold: %s", t, v))
	}
	if len(texts) == 0 {
		return nil
	}
	return gateError{errors.New(strings.Join(texts, "; "))}
}

// serverLimits names the limits that a ferry process runs with, by the command that
// it was started with: dev has none, serve has all. It returns "" for any other
// process, and where there is no /proc.
func serverLimits(pid int) string {
	if pid == 0 {
		return ""
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}
	return limitsOfCommand(strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
}

func limitsOfCommand(args []string) string {
	if !strings.HasPrefix(filepath.Base(args[0]), "ferry") || len(args) < 2 {
		return ""
	}
	switch args[1] {
	case "dev":
		return "off (ferry dev)"
	case "serve":
		return "on (ferry serve)"
	}
	return ""
}
