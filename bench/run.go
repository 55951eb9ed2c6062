package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ferryrelay/ferry/engine/sock"
)

// Run sets up what cfg asks for, puts load on the relay that d speaks to, and
// reports what it measured. It blocks for set-up, Warmup, Duration and at most
// Drain. A Result with losses is not an error; errors are ErrConfig, ErrRemote,
// what d or the kernel refuse, a server process that cannot be read, and ctx's.
func Run(ctx context.Context, cfg Config, d Dialect) (Result, error) {
	b, err := openBed(ctx, cfg, d)
	if err != nil {
		return Result{}, err
	}
	res, err := b.measure(ctx, b.cfg)
	return res, errors.Join(err, b.rig.Close())
}

// bed is a rig that is ready for runs.
type bed struct {
	cfg     Config // with defaults
	dialect Dialect
	rig     *Rig
}

func openBed(ctx context.Context, cfg Config, d Dialect) (*bed, error) {
	cfg, err := cfg.withDefaults(d)
	if err != nil {
		return nil, err
	}
	p, err := cfg.plan()
	if err != nil {
		return nil, err
	}
	var before, after uint64
	if cfg.ServerPID != 0 {
		if before, err = readRSS(cfg.ServerPID); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	rig, err := d.Open(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("bench: set up %s: %w", d.Name(), err)
	}
	rig.Setup.Duration = time.Since(begin)
	if cfg.ServerPID != 0 {
		after, err = readRSS(cfg.ServerPID)
	}
	rig.Setup.RSSBefore, rig.Setup.RSSAfter = before, after
	if err = errors.Join(err, rig.check()); err != nil {
		return nil, errors.Join(err, rig.Close())
	}
	return &bed{cfg, d, rig}, nil
}

// measure does one run. cfg differs from b.cfg in the rate at most.
func (b *bed) measure(ctx context.Context, cfg Config) (Result, error) {
	g := newGenerator(&cfg, b.rig, rand.Uint32())
	o := &observer{g: g, serverPID: cfg.ServerPID, generatorPID: os.Getpid(), before: readSystem()}
	started := time.Now().Add(time.Duration(g.measure - sock.Now()))

	churned := make(chan *Churn, 1)
	go func() { churned <- b.churn(ctx, &cfg, time.Until(started)+cfg.Duration) }()
	done := make(chan struct{})
	observed := make(chan struct{})
	go func() { defer close(observed); o.Run(ctx, done) }()
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }() // Its thread may end with it.
	err := <-ran
	close(done)
	<-observed
	churn := <-churned

	if err = errors.Join(err, o.err); err != nil {
		return Result{}, err
	}
	res := g.result(o)
	res.Started = started.UTC().Truncate(time.Millisecond)
	res.Dialect = b.dialect.Name()
	res.Setup = b.rig.Setup
	res.Churn = churn
	res.judge(&cfg)
	return res, nil
}
