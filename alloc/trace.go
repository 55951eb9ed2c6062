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
	ctx, span := trace.Start(ctx, "describe")
	d, err := t.Relay.Describe(ctx, id)
	span.End(err)
	return d, err
}

// tracedStore is a Store whose calls are spans, in a context that has one.
type tracedStore struct{ Store }

func (t tracedStore) PutCode(ctx context.Context, tenant Tenant, code string, host proto.AllocationID) (bool, error) {
	ctx, span := trace.Start(ctx, "store.PutCode")
	stored, err := t.Store.PutCode(ctx, tenant, code, host)
	span.End(err)
	return stored, err
}

func (t tracedStore) HostOf(ctx context.Context, tenant Tenant, code string) (proto.AllocationID, error) {
	ctx, span := trace.Start(ctx, "store.HostOf")
	host, err := t.Store.HostOf(ctx, tenant, code)
	span.End(err)
	return host, err
}

func (t tracedStore) CodeOf(ctx context.Context, tenant Tenant, host proto.AllocationID) (string, error) {
	ctx, span := trace.Start(ctx, "store.CodeOf")
	code, err := t.Store.CodeOf(ctx, tenant, host)
	span.End(err)
	return code, err
}

func (t tracedStore) Codes(ctx context.Context, tenant Tenant) (int, error) {
	ctx, span := trace.Start(ctx, "store.Codes")
	n, err := t.Store.Codes(ctx, tenant)
	span.End(err)
	return n, err
}
