package rpc

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

// Operator performs an operator's commands on a relay. Its methods may be called
// concurrently. They return alloc.ErrUnavailable for a relay that does not answer,
// which may have executed the command nevertheless.
type Operator interface {
	// Drain starts a drain of the relay, or changes its deadline, up to 168 h and rounded up to
	// milliseconds, and threshold. Negative values mean the settings of the relay.
	Drain(ctx context.Context, d engine.DrainConfig) (operator.DrainState, error)
	// Undrain ends the drain, so that the relay accepts new allocations. Error:
	// operator.ErrFinal.
	Undrain(ctx context.Context) (operator.DrainState, error)
	// Kick removes a player from its match, and reports whether it was there. If not, the relay has
	// restarted recently and does not know it; it is then barred from returning. Errors:
	// alloc.ErrNotFound, engine.ErrKickHost.
	Kick(ctx context.Context, id proto.AllocationID) (existed bool, err error)
	// Close ends an allocation, and reports the same. Errors: alloc.ErrNotFound.
	Close(ctx context.Context, id proto.AllocationID) (existed bool, err error)
	// Page returns a read-only page of the relay. The target is a path with a query of
	// 1,024 bytes at most, such as /allocations?role=host. Its body has MaxPage bytes at most.
	Page(ctx context.Context, target string) (operator.Page, error)
}

// MaxPage bounds a page in bytes. A page of a thousand allocations has half of it.
const MaxPage = 1 << 20

const maxTarget = 1024

// The bounds of a drain, which are those of a relay's admin pages.
const (
	maxDrainDeadline  = 168 * time.Hour
	maxDrainThreshold = 1 << 26
	// notSet stands for the setting of the relay in a call, and for no deadline in an
	// answer.
	notSet = -1
)

type operatorCalls struct {
	operator Operator
	logger   *slog.Logger
	executed atomic.Uint64
}

func (o *operatorCalls) audit(q request, what string, about ...any) {
	o.executed.Add(1)
	o.logger.Info("operator: "+what, append(about, "by", q.caller.name, "role", string(q.caller.role), "from", q.caller.from)...)
}

func (o *operatorCalls) drain(ctx context.Context, q request, in *drainCall) (any, error) {
	d, err := in.drain()
	if err != nil {
		return nil, err
	}
	state, err := o.operator.Drain(ctx, d)
	if err != nil {
		return nil, err
	}
	o.audit(q, "a drain was started or changed", "allocations", state.Allocations, "ends_at_allocations", state.Threshold)
	return drainAnswerOf(state, time.Now()), nil
}

func (o *operatorCalls) undrain(ctx context.Context, q request, _ *emptyCall) (any, error) {
	state, err := o.operator.Undrain(ctx)
	if err != nil {
		return nil, err
	}
	o.audit(q, "a drain was undone")
	return drainAnswerOf(state, time.Now()), nil
}

func (o *operatorCalls) kick(ctx context.Context, q request, in *idCall) (any, error) {
	existed, err := o.operator.Kick(ctx, proto.AllocationID(in.ID))
	return o.ended(q, in, "an allocation was kicked", existed, err)
}

func (o *operatorCalls) close(ctx context.Context, q request, in *idCall) (any, error) {
	existed, err := o.operator.Close(ctx, proto.AllocationID(in.ID))
	return o.ended(q, in, "an allocation was closed", existed, err)
}

func (o *operatorCalls) ended(q request, in *idCall, what string, existed bool, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if !existed {
		what = "an allocation was barred from returning"
	}
	o.audit(q, what, "allocation", proto.AllocationID(in.ID).String())
	return endedAnswer{There: existed}, nil
}

// page answers a read-only request. It is not logged: dashboards send one per second.
func (o *operatorCalls) page(ctx context.Context, _ request, in *pageCall) (any, error) {
	if len(in.Target) > maxTarget || !strings.HasPrefix(in.Target, "/") {
		return nil, malformed.withDetail("target is not a path of at most %d bytes", maxTarget)
	}
	p, err := o.operator.Page(ctx, in.Target)
	if err != nil {
		return nil, err
	}
	if len(p.Body) > MaxPage {
		return nil, tooLarge.withDetail("the page has more than %d bytes", MaxPage)
	}
	return p, nil
}
