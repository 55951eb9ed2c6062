package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ferryrelay/ferry/internal/sock"
)

// Run sets up what cfg asks for, puts load on the relay that d speaks to, and
// reports what it measured. It blocks for set-up, Warmup, Duration and at most
// Drain. A Result with losses is not an error; errors are ErrConfig, ErrRemote,
// what d or the kernel refuse, a server process that cannot be read, and ctx's.
// When ctx ends first, the Result is about the part that was seen: what is under
// way has the time of Drain to arrive, and Interrupted is true.
func Run(ctx context.Context, cfg Config, d Dialect) (Result, error) {
	b, res, err := openBed(ctx, cfg, d)
	if err != nil {
		return res, err
	}
	res, err = b.measure(ctx, b.cfg)
	return res, errors.Join(err, b.rig.Close())
}

// bed is a rig that is ready for runs.
type bed struct {
	cfg     Config // with defaults
	plan    Plan
	dialect Dialect
	rig     *Rig
}

// openBed sets up. When ctx ends meanwhile, the Result says what was asked for.
func openBed(ctx context.Context, cfg Config, d Dialect) (*bed, Result, error) {
	cfg, err := cfg.withDefaults(d)
	if err != nil {
		return nil, Result{}, err
	}
	p, err := cfg.plan()
	if err != nil {
		return nil, Result{}, err
	}
	b := &bed{cfg: cfg, plan: p, dialect: d}
	if err = b.open(ctx); err == nil {
		return b, Result{}, nil
	}
	if ctx.Err() == nil {
		return nil, Result{}, err
	}
	res := newResult(&cfg, d, &p)
	res.stopped()
	return nil, res, err
}

// open makes the rig and holds it to the plan.
func (b *bed) open(ctx context.Context) (err error) {
	var before, after uint64
	if b.cfg.ServerPID != 0 {
		if before, err = readRSS(b.cfg.ServerPID); err != nil {
			return err
		}
	}
	begin := time.Now()
	if b.rig, err = b.dialect.Open(ctx, b.plan); err != nil {
		return fmt.Errorf("bench: set up %s: %w", b.dialect.Name(), err)
	}
	b.rig.Setup.Duration = time.Since(begin)
	if b.cfg.ServerPID != 0 {
		after, err = readRSS(b.cfg.ServerPID)
	}
	b.rig.Setup.RSSBefore, b.rig.Setup.RSSAfter = before, after
	if err = errors.Join(err, b.rig.check()); err != nil {
		return errors.Join(err, b.rig.Close())
	}
	return nil
}

// measure does one run. cfg differs from b.cfg in rate and name at most. With
// ctx's error it returns what was seen until then.
func (b *bed) measure(ctx context.Context, cfg Config) (Result, error) {
	res := newResult(&cfg, b.dialect, &b.plan)
	play, err := b.newPlay(ctx, &cfg)
	if err != nil {
		return res, err
	}
	g := newGenerator(&cfg, b.rig, rand.Uint32())
	g.join(play)
	o := newObserver(g, cfg.ServerPID)
	clock := time.Now().Add(-time.Duration(sock.Now()))
	res.Started = clock.Add(time.Duration(g.measure)).UTC().Truncate(time.Millisecond)

	sessions := make(chan *Churn, 1)
	lasts := time.Until(clock.Add(time.Duration(g.end)))
	go func() { sessions <- b.churn(ctx, &cfg, lasts) }()
	calls := make(chan *allocating, 1)
	reserving := b.newAllocating(&cfg, clock.Add(time.Duration(g.split)), clock.Add(time.Duration(g.end)))
	go func() { reserving.Run(ctx); calls <- reserving }()
	done := make(chan struct{})
	observed := make(chan struct{})
	go func() { defer close(observed); o.Run(ctx, done) }()
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }() // Its thread may end with it.
	err = <-ran
	close(done)
	<-observed
	res.Churn = <-sessions
	made := <-calls

	if g.interrupted {
		o.err = nil // A server that ended with the run.
	}
	if err = errors.Join(err, o.err); err != nil {
		return Result{}, err
	}
	res.Setup = b.rig.Setup
	g.collect(&res, o)
	res.Control = g.control(o, made.report(&res))
	res.judge(&cfg)
	if g.interrupted {
		res.stopped()
		return res, ctx.Err()
	}
	return res, nil
}
