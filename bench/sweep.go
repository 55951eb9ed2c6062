package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// AtRate is what [Sweep] and [FindMax] append to the name of a run at a rate.
func AtRate(rate float64) string { return fmt.Sprintf(" at %.0f/s", rate) }

// Sweep makes a run at each of the rates in order, in datagrams per second, and all again in each further round, so
// that a drift of the machine meets all rates. Errors are those of [Run].
func Sweep(ctx context.Context, cfg Config, d Dialect, rates []float64, rounds int) (all []Result, err error) {
	if len(rates) == 0 || rounds < 1 || slices.Min(rates) <= 0 || cfg.Window != 0 || cfg.Shape == ShapeChurn {
		return nil, fmt.Errorf("%w: Sweep needs rates above 0 and a round, and is for open loops, and not for churn", ErrConfig)
	}
	cfg.Rate = slices.Max(rates)
	b, res, err := openTestbed(ctx, cfg, d)
	if err != nil {
		return nil, err
	}
	for n := range rounds * len(rates) {
		if res, err = b.measureAt(ctx, rates[n%len(rates)]); res.Version != 0 {
			all = append(all, res)
		}
		if err != nil {
			break
		}
		if b.cfg.Progress.Run != nil {
			b.cfg.Progress.Run(res)
		}
	}
	return all, errors.Join(err, b.rig.Close())
}

func (b *testbed) measureAt(ctx context.Context, rate float64) (Result, error) {
	cfg := b.cfg
	cfg.Rate = rate
	cfg.Label.Name += AtRate(rate)
	return b.measure(ctx, cfg)
}
