package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// Run loads the relay of d with cfg. It blocks for set-up, Warmup, Duration and at most Drain. A
// Result with losses is not an error. Errors wrap ErrConfig, ErrRemote, an error of the
// set-up or of the kernel, or that of ctx. With ErrServerEnded the Result is complete but for the
// server's use of the processor. When ctx ends first, the Result is about the part before.
func Run(ctx context.Context, cfg Config, d Dialect) (Result, error) {
	b, res, err := openTestbed(ctx, cfg, d)
	if err != nil {
		return res, err
	}
	res, err = b.measure(ctx, b.cfg)
	return res, errors.Join(err, b.rig.Close())
}

type testbed struct {
	cfg     Config // with defaults
	plan    benchrig.Plan
	dialect benchrig.Dialect
	rig     *benchrig.Rig
	setup   setup
	another bool // the process of ServerPID has no socket of the relay
}

// openTestbed uses the family of the relay's endpoints if the configuration names none and they have only one.
func openTestbed(ctx context.Context, cfg Config, d Dialect) (*testbed, Result, error) {
	b, res, err := openTestbedOf(ctx, cfg, d)
	other, ok := errors.AsType[*benchrig.FamilyError](err)
	if ok && cfg.Family == "" && !cfg.Sources.IsValid() {
		cfg.Family = other.Has
		return openTestbedOf(ctx, cfg, d)
	}
	return b, res, err
}

func openTestbedOf(ctx context.Context, cfg Config, d Dialect) (*testbed, Result, error) {
	if d.relay == nil {
		return nil, Result{}, fmt.Errorf("%w: no dialect", ErrConfig)
	}
	cfg, err := cfg.withDefaults(d.relay)
	if err != nil {
		return nil, Result{}, err
	}
	p, err := cfg.plan()
	if err != nil {
		return nil, Result{}, err
	}
	b := &testbed{cfg: cfg, plan: p, dialect: d.relay}
	if err = b.open(ctx); err == nil {
		return b, Result{}, nil
	}
	if ctx.Err() == nil {
		return nil, Result{}, err
	}
	res := newResult(&cfg, d.relay, &p)
	res.markInterrupted()
	return nil, res, err
}

func (b *testbed) open(ctx context.Context) (err error) {
	var before uint64
	if b.cfg.ServerPID != 0 {
		if before, err = readRSS(b.cfg.ServerPID); err != nil {
			return err
		}
	}
	begin := time.Now()
	if b.rig, err = b.dialect.Open(ctx, b.plan); err != nil {
		return fmt.Errorf("bench: set up %s: %w", b.dialect.Name(), err)
	}
	b.setup = setup{Duration: time.Since(begin), RSSBefore: before}
	if b.cfg.ServerPID != 0 {
		b.setup.RSSAfter, err = readRSS(b.cfg.ServerPID)
	}
	if err = errors.Join(err, b.rig.Check()); err != nil {
		return errors.Join(err, b.rig.Close())
	}
	if b.cfg.ServerPID != 0 {
		protocol := "udp"
		if benchrig.IsTCP(b.cfg.Transport) {
			protocol = "tcp"
		}
		owns, known := ownsPort(b.cfg.ServerPID, protocol, b.rig.Flows[0].Dst.Port())
		b.another = known && !owns
	}
	return nil
}

// measure does one run. With ctx's error it returns what was seen until then.
func (b *testbed) measure(ctx context.Context, cfg Config) (Result, error) {
	res := newResult(&cfg, b.dialect, &b.plan)
	metrics, err := cfg.readMetrics(ctx)
	if err != nil {
		return res, err
	}
	g := newGenerator(&cfg, b.rig, rand.Uint32())
	g.replacer = newReplacer(&cfg, b.dialect, g)
	o := newObserver(g, cfg.ServerPID)
	clock := time.Now().Add(-time.Duration(sock.Now()))
	res.Started = clock.Add(time.Duration(g.times.measure)).UTC().Truncate(time.Millisecond)

	var beside, replacing sync.WaitGroup
	lasts := time.Until(clock.Add(time.Duration(g.times.end)))
	beside.Go(func() { res.Churn = b.churn(ctx, &cfg, lasts) })
	replaceCtx, stopReplacing := context.WithCancel(ctx)
	defer stopReplacing()
	from, until := g.times.measure, g.times.end // An interrupt changes the end.
	if g.replacer != nil {
		replacing.Go(func() { g.replacer.reserver.Run(replaceCtx, clock, from, until) })
	}
	observing, stopObserving := context.WithCancel(ctx)
	defer stopObserving()
	beside.Go(func() { o.Run(observing) })
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }() // a pinned thread ends with its goroutine
	err = <-ran
	stopObserving()
	beside.Wait()
	stopReplacing()
	replacing.Wait()
	res.Replaced = g.replacer.report()

	if g.times.interrupted {
		o.err = nil // the server may have ended with the run
	}
	var ended error
	if len(o.readings) > 1 && errors.Is(o.err, fs.ErrNotExist) {
		ended = fmt.Errorf("%w: its processor time is not known", ErrServerEnded)
		o.err, o.serverPID = nil, 0
	}
	if err = errors.Join(err, o.err); err != nil {
		return Result{}, err
	}
	res.Setup = b.setup
	g.collect(&res, o)
	res.Server.NoSocket = b.another && res.Server.PID != 0
	if cfg.Metrics != nil {
		after, err := cfg.readMetrics(context.WithoutCancel(ctx))
		if res.Relay = newRelay(metrics, after); err != nil { // It may have ended with the run.
			res.Relay = newRelay("", metrics)
			res.Relay.Drops, res.Relay.Limited = nil, 0
			res.Errors["metrics of the relay not read"]++
		}
	}
	res.findCauses(&cfg)
	if g.times.interrupted {
		res.markInterrupted()
		return res, ctx.Err()
	}
	return res, ended
}
