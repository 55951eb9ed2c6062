package cluster

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// What an operator is refused besides the errors of package alloc.
var (
	// ErrFinal is returned by Undrain for a drain that a signal began: the sender
	// of the signal waits for the end of the process.
	ErrFinal = errors.New("cluster: a signal began this drain, so it cannot be undone")
	// ErrHost is for a host that is to be kicked.
	ErrHost = errors.New("cluster: a host cannot be kicked from its own match, only closed")
)

// Operator performs an operator's commands on a relay. Its methods may be called from
// several goroutines, and return alloc.ErrUnavailable for a relay that does not
// answer: it may have done it all the same.
type Operator interface {
	// Drain lets the relay run dry, or changes how that ends.
	Drain(ctx context.Context, d Drain) (DrainState, error)
	// Undrain lets it take new allocations again. Errors: ErrFinal.
	Undrain(ctx context.Context) (DrainState, error)
	// Kick removes a player from its match. Errors: alloc.ErrNotFound, ErrHost. It
	// reports whether the allocation was there. If not, the relay was started anew
	// lately and cannot tell: should it be one of before, it does not come back.
	Kick(ctx context.Context, id proto.AllocationID) (there bool, err error)
	// Close ends an allocation, and reports the same. Errors: alloc.ErrNotFound.
	Close(ctx context.Context, id proto.AllocationID) (there bool, err error)
	// Page returns what the relay shows an operator at a path with a query, such as
	// /allocations?role=host: 1,024 bytes at most. Nothing changes by it.
	Page(ctx context.Context, target string) (Page, error)
}

// Page is what an operator is shown.
type Page struct {
	Status int    // of HTTP
	Body   []byte // JSON, or text where Status says that something is wrong; MaxPage at most
}

// MaxPage bounds a page in bytes: a thousand allocations have half of it.
const MaxPage = 1 << 20

// maxTarget bounds the path and the query of a page in bytes.
const maxTarget = 1024

// Drain says how a drain ends.
type Drain struct {
	// Deadline is how long it may take, up to 168 h, rounded up to milliseconds.
	// Zero: until the threshold. Negative: what the relay's settings say.
	Deadline time.Duration
	// Threshold is how many allocations may be left. Negative: what the relay's
	// settings say.
	Threshold int
}

// DrainState is what a relay knows of its drain.
type DrainState struct {
	Draining bool
	// Final: it cannot be undone.
	Final bool
	// Deadline is when the relay ends whatever is left, by this machine's clock.
	// Zero: never.
	Deadline time.Time
	// Threshold is how many allocations may be left then, Allocations how many
	// are left now.
	Threshold, Allocations int
}

// The bounds of a drain, which are those of a relay's admin pages.
const (
	maxDrainDeadline  = 168 * time.Hour
	maxDrainThreshold = 1 << 26
	// unsaid stands for what the relay's settings say, and for no deadline.
	unsaid = -1
)

// audit logs an operation and the caller that requested it.
func (s *Server) audit(q query, what string, about ...any) {
	s.counts.operatorCalls.Add(1)
	s.logger.Info("operator: "+what, append(about, "by", q.caller.name, "role", string(q.caller.role), "from", q.caller.from)...)
}

func (s *Server) drain(ctx context.Context, q query) (any, error) {
	var in drainCall
	if err := decode(q.body, &in); err != nil {
		return nil, err
	}
	d, err := in.drain()
	if err != nil {
		return nil, err
	}
	state, err := s.operator.Drain(ctx, d)
	if err != nil {
		return nil, err
	}
	s.audit(q, "a drain was begun, or changed", "allocations", state.Allocations, "ends_at_allocations", state.Threshold)
	return drainAnswerOf(state, time.Now()), nil
}

func (s *Server) undrain(ctx context.Context, q query) (any, error) {
	if err := decode(q.body, &emptyCall{}); err != nil {
		return nil, err
	}
	state, err := s.operator.Undrain(ctx)
	if err != nil {
		return nil, err
	}
	s.audit(q, "a drain was undone")
	return drainAnswerOf(state, time.Now()), nil
}

func (s *Server) kick(ctx context.Context, q query) (any, error) {
	return s.operate(ctx, q, "an allocation was kicked", s.operator.Kick)
}

func (s *Server) closeOne(ctx context.Context, q query) (any, error) {
	return s.operate(ctx, q, "an allocation was closed", s.operator.Close)
}

// change does something to one allocation.
func (s *Server) operate(ctx context.Context, q query, what string, do func(context.Context, proto.AllocationID) (bool, error)) (any, error) {
	id, err := decodeID(q.body)
	if err != nil {
		return nil, err
	}
	there, err := do(ctx, id)
	if err != nil {
		return nil, err
	}
	if !there {
		what = "an allocation is kept from coming back"
	}
	s.audit(q, what, "allocation", id.String())
	return endedAnswer{There: there}, nil
}

// page answers a read-only request. It is not logged: dashboards send one per second.
func (s *Server) page(ctx context.Context, q query) (any, error) {
	var in pageCall
	if err := decode(q.body, &in); err != nil {
		return nil, err
	}
	if len(in.Target) > maxTarget || !strings.HasPrefix(in.Target, "/") {
		return nil, malformed.withDetail("target is no path of %d bytes at most", maxTarget)
	}
	p, err := s.operator.Page(ctx, in.Target)
	if err != nil {
		return nil, err
	}
	if len(p.Body) > MaxPage {
		return nil, tooLarge.withDetail("the page has more than %d bytes", MaxPage)
	}
	return pageAnswer(p), nil
}
