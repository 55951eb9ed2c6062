package alloc

import (
	"context"

	"github.com/ferryrelay/ferry/internal/base/trace"
	"github.com/ferryrelay/ferry/proto"
)

// tracedRelay is a Relay whose calls are spans, in a context that has one.
type tracedRelay struct{ Relay }

func (t tracedRelay) ReserveHost(ctx context.Context, r HostRequest) (Reservation, error) {
	ctx, span := trace.Start(ctx, "reserve")
	span.SetString("ferry.role", "host")
	span.SetInt("ferry.max_connections", r.MaxConnections)
	res, err := t.Relay.ReserveHost(ctx, r)
	endReservation(span, res, err)
	return res, err
}

func (t tracedRelay) ReserveJoiner(ctx context.Context, r JoinerRequest) (Reservation, error) {
	ctx, span := trace.Start(ctx, "reserve")
	span.SetString("ferry.role", "joiner")
	res, err := t.Relay.ReserveJoiner(ctx, r)
	endReservation(span, res, err)
	return res, err
}

func endReservation(span trace.Span, res Reservation, err error) {
	if res.Region != "" {
		span.SetString("ferry.region", res.Region)
	}
	span.End(err)
}

func (t tracedRelay) Describe(ctx context.Context, id proto.AllocationID) (Description, error) {
	return traced(ctx, "describe", func(ctx context.Context) (Description, error) { return t.Relay.Describe(ctx, id) })
}

// traced makes a call a span.
func traced[T any](ctx context.Context, name string, call func(context.Context) (T, error)) (T, error) {
	ctx, span := trace.Start(ctx, name)
	result, err := call(ctx)
	span.End(err)
	return result, err
}

// tracedStore is a Store whose calls are spans, in a context that has one.
type tracedStore struct{ Store }

func (t tracedStore) PutCode(ctx context.Context, tenant Tenant, code string, host proto.AllocationID) (bool, error) {
	return traced(ctx, "store.PutCode", func(ctx context.Context) (bool, error) { return t.Store.PutCode(ctx, tenant, code, host) })
}

func (t tracedStore) HostOf(ctx context.Context, tenant Tenant, code string) (proto.AllocationID, error) {
	return traced(ctx, "store.HostOf", func(ctx context.Context) (proto.AllocationID, error) { return t.Store.HostOf(ctx, tenant, code) })
}

func (t tracedStore) CodeOf(ctx context.Context, tenant Tenant, host proto.AllocationID) (string, error) {
	return traced(ctx, "store.CodeOf", func(ctx context.Context) (string, error) { return t.Store.CodeOf(ctx, tenant, host) })
}

func (t tracedStore) Codes(ctx context.Context, tenant Tenant) (int, error) {
	return traced(ctx, "store.Codes", func(ctx context.Context) (int, error) { return t.Store.Codes(ctx, tenant) })
}
