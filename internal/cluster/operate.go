package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

var _ Operator = remote{}

// Operator returns the same relay as [Dialer.Relay] does, for what an operator
// has it do. It does not connect.
func (d *Dialer) Operator(n fleet.Node) Operator {
	return remote{dialer: d, name: lineName{relay: n.Relay, control: n.Control}}
}

// Drain lets the relay run dry.
func (r remote) Drain(ctx context.Context, d Drain) (DrainState, error) {
	return r.askDrain(ctx, pathDrain, drainBody(d))
}

// Undrain lets it take new allocations again.
func (r remote) Undrain(ctx context.Context) (DrainState, error) {
	return r.askDrain(ctx, pathUndrain, emptyCall{})
}

func (r remote) askDrain(ctx context.Context, path string, in any) (DrainState, error) {
	var a drainAnswer
	if err := r.ask(ctx, path, in, &a); err != nil {
		return DrainState{}, err
	}
	state, err := a.state(time.Now())
	if err != nil {
		return DrainState{}, r.lost(err)
	}
	return state, nil
}

// Kick removes a player from its match.
func (r remote) Kick(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	return r.askEnd(ctx, pathKick, id)
}

// Close ends an allocation since an operator says so.
func (r remote) Close(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	return r.askEnd(ctx, pathClose, id)
}

func (r remote) askEnd(ctx context.Context, path string, id proto.AllocationID) (there bool, err error) {
	var a endedAnswer
	err = r.ask(ctx, path, idCall{ID: id.String()}, &a)
	return a.There, err
}

// Page returns what the relay shows an operator.
func (r remote) Page(ctx context.Context, target string) (Page, error) {
	var a pageAnswer
	if err := r.exchange(ctx, exchange{path: pathPage, in: pageCall{Target: target}, out: &a, most: maxPageAnswer}); err != nil {
		return Page{}, err
	}
	if a.Status < 200 || a.Status > 599 || len(a.Body) > MaxPage {
		return Page{}, r.lost(fmt.Errorf("%w: a page of %d bytes with status %d", errAnswer, len(a.Body), a.Status))
	}
	return Page(a), nil
}
