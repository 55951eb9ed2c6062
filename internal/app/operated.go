package app

import (
	"context"
	"errors"
	"net/http"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/proto"
)

// operated is this process's relay as an operator reaches it through the cluster.
type operated struct {
	app   *App
	pages http.Handler // what it shows
}

var _ cluster.Operator = operated{}

func (a *App) operated() operated { return operated{a, admin.RelayPages(a.relay, a.since)} }

// Page shows what the admin pages of this process show of its relay.
func (o operated) Page(ctx context.Context, target string) (cluster.Page, error) {
	return cluster.Page(admin.Show(ctx, o.pages, target, cluster.MaxPage)), nil
}

// Drain is App.Drain. What it does not say is as the settings say.
func (o operated) Drain(ctx context.Context, d cluster.Drain) (cluster.DrainState, error) {
	cfg := o.app.drainDefaults()
	if d.Deadline >= 0 {
		cfg.Deadline = d.Deadline
	}
	if d.Threshold >= 0 {
		cfg.Threshold = d.Threshold
	}
	return o.state(o.app.Drain(ctx, cfg))
}

// Undrain is App.Undrain.
func (o operated) Undrain(ctx context.Context) (cluster.DrainState, error) {
	err := o.app.Undrain(ctx)
	if errors.Is(err, admin.ErrFinal) {
		err = cluster.ErrFinal
	}
	return o.state(err)
}

func (o operated) state(err error) (cluster.DrainState, error) {
	if err != nil {
		return cluster.DrainState{}, err
	}
	s := o.app.DrainState()
	return cluster.DrainState{
		Draining: s.Draining, Final: s.Final, Deadline: s.Deadline, Threshold: s.Threshold, Allocations: s.Allocations,
	}, nil
}

// Kick removes a player from its match.
func (o operated) Kick(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	there, err = o.change(ctx, id, o.app.relay.Kick)
	if errors.Is(err, engine.ErrKickHost) {
		err = cluster.ErrHost
	}
	return there, err
}

// Close ends an allocation.
func (o operated) Close(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	return o.change(ctx, id, o.app.relay.End)
}

// change does something to an allocation, and reports whether it was there. Soon
// after a restart the engine takes any id, which it then keeps from coming back.
func (o operated) change(ctx context.Context, id proto.AllocationID, do func(context.Context, proto.AllocationID) error) (there bool, err error) {
	_, missing := o.app.relay.Describe(ctx, id)
	return missing == nil, do(ctx, id)
}
