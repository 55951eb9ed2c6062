package rpc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

type remote struct {
	dialer  *Dialer
	key     relayKey
	lacks   []placement.Capability
	version string // of the relay, for errors
}

// leaveOut clears the members of a reservation that the relay does not know.
func (r remote) leaveOut(c *alloc.Caller) {
	if slices.Contains(r.lacks, placement.CapabilityPlayers) {
		c.Player, c.Individual = "", false
	}
	if slices.Contains(r.lacks, placement.CapabilityTags) {
		c.Tag = 0
	}
}

func (r remote) requireMigration() error {
	if !slices.Contains(r.lacks, placement.CapabilityMigration) {
		return nil
	}
	return fmt.Errorf("%w: relay %v of version %q cannot do %q yet: upgrade it", alloc.ErrUnavailable, r.key.relay, r.version,
		placement.CapabilityMigration)
}

var _ placement.Relay = remote{}

// ReserveHost makes a reservation. A reservation whose answer is lost is cancelled.
func (r remote) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	if err := checkTenant(q.Tenant); err != nil {
		return alloc.Reservation{}, err
	}
	r.leaveOut(&q.Caller)
	return r.reserve(ctx, pathReserveHost, reserveHostBody(q))
}

func (r remote) ReserveJoiner(ctx context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	if err := checkTenant(q.Tenant); err != nil {
		return alloc.Reservation{}, err
	}
	r.leaveOut(&q.Caller)
	return r.reserve(ctx, pathReserveJoiner, reserveJoinerBody(q))
}

func (r remote) MigrateHost(ctx context.Context, q alloc.MigrationRequest) (alloc.Reservation, error) {
	if err := checkTenant(q.Tenant); err != nil {
		return alloc.Reservation{}, err
	}
	if err := r.requireMigration(); err != nil {
		return alloc.Reservation{}, err
	}
	return r.reserve(ctx, pathMigrate, migrateBody(q))
}

// LeaveHost says that a host leaves. It may be repeated.
func (r remote) LeaveHost(ctx context.Context, q alloc.LeaveRequest) error {
	if err := checkTenant(q.Tenant); err != nil {
		return err
	}
	if err := r.requireMigration(); err != nil {
		return err
	}
	return r.call(ctx, pathLeave, leaveBody(q), &emptyAnswer{})
}

// checkTenant rejects names that JSON would change on the way, since they would then
// name another tenant.
func checkTenant(t alloc.Tenant) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if !utf8.ValidString(t.Project) || !utf8.ValidString(t.Environment) {
		return fmt.Errorf("%w: it is not UTF-8", alloc.ErrTenantName)
	}
	return nil
}

func (r remote) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	var a descriptionAnswer
	err := r.call(ctx, pathDescribe, idCall{ID: allocationID(id)}, &a)
	if err != nil {
		return alloc.Description{}, err
	}
	d, err := a.description()
	if err != nil {
		return alloc.Description{}, r.wrap(err)
	}
	return d, nil
}

func (r remote) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	return r.call(ctx, pathKeepCode, keepCodeCall{Host: allocationID(host), Code: code}, &emptyAnswer{})
}

func (r remote) End(ctx context.Context, id proto.AllocationID) error {
	return r.call(ctx, pathEnd, idCall{ID: allocationID(id)}, &emptyAnswer{})
}

// call makes a call that need not be cancelled when its answer is lost.
func (r remote) call(ctx context.Context, path string, in, out any) error {
	return r.exchange(ctx, exchange{path: path, in: in, out: out})
}

func (r remote) exchange(ctx context.Context, x exchange) error {
	rc, runCtx, err := r.dialer.acquire(r.key)
	if err != nil {
		return err
	}
	defer r.dialer.release(rc)
	x.key = []string{}
	_, err = rc.call(ctx, runCtx, x)
	return err
}

// reserve makes a call with a key. It cancels the key if the relay may have made a
// reservation whose answer did not arrive.
func (r remote) reserve(ctx context.Context, path string, in any) (alloc.Reservation, error) {
	rc, runCtx, err := r.dialer.acquire(r.key)
	if err != nil {
		return alloc.Reservation{}, err
	}
	defer r.dialer.release(rc)
	k := newKey()
	var a reservationAnswer
	unsure, err := rc.call(ctx, runCtx, exchange{path: path, key: []string{k.String()}, in: in, out: &a})
	if err == nil {
		var res alloc.Reservation
		if res, err = a.reservation(); err == nil {
			return res, nil
		}
		unsure, err = true, r.wrap(err)
	}
	if unsure {
		r.dialer.queueCancellation(rc, k)
	}
	return alloc.Reservation{}, err
}

func (r remote) wrap(err error) error { return r.key.wrap(err) }

func (k relayKey) wrap(err error) error {
	return fmt.Errorf("%w: relay %v at %s: %w", alloc.ErrUnavailable, k.relay, k.control, err)
}

type exchange struct {
	path    string
	key     []string // the idempotency key, if any
	in, out any
	limit   int // of the answer in bytes; 0: maxAnswer
}

// call makes one call, until ctx or the dialer ends. Its error is one of package alloc.
// With an error, unsure reports that the relay may have executed the call nevertheless.
func (rc *relayConn) call(ctx, runCtx context.Context, x exchange) (unsure bool, err error) {
	ctx, cancel := withDefaultDeadline(ctx)
	defer cancel()
	defer context.AfterFunc(runCtx, cancel)()
	release, err := rc.acquireSlot(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	req, err := rc.request(ctx, x)
	if err != nil {
		return false, err
	}
	res, err := rc.transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		// An alert means that the handshake failed, which TLS 1.3 reports to the
		// client only at its first read.
		_, alert := errors.AsType[tls.AlertError](err)
		return sent.Load() && !alert, rc.key.wrap(err)
	}
	defer func() { _ = res.Body.Close() }()
	limit := cmp.Or(x.limit, maxAnswer)
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+1))
	switch {
	case err != nil:
		return true, rc.key.wrap(err)
	case len(body) > limit:
		return true, rc.key.wrap(fmt.Errorf("%w: more than %d bytes", errAnswer, limit))
	case res.StatusCode == http.StatusOK:
		if err := json.Unmarshal(body, x.out); err != nil {
			return true, rc.key.wrap(fmt.Errorf("%w: %w", errAnswer, err))
		}
		return false, nil
	}
	unsure, err = rc.parseRefusal(res.StatusCode, body)
	// A relay may see that its caller has given up before the caller does. It
	// then answers so, and continues with the call.
	return unsure || ctx.Err() != nil, err
}

func withDefaultDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultDeadline)
}

// request returns the HTTP request of a call, with the time left until the deadline of
// ctx.
func (rc *relayConn) request(ctx context.Context, x exchange) (*http.Request, error) {
	until, _ := ctx.Deadline()
	left := min(time.Until(until), maxDeadline)
	if left < time.Millisecond || ctx.Err() != nil {
		return nil, rc.key.wrap(context.DeadlineExceeded)
	}
	body, err := json.Marshal(x.in)
	if err != nil {
		return nil, rc.key.wrap(err)
	}
	target := url.URL{Scheme: "https", Host: rc.key.control, Path: x.path}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, rc.key.wrap(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(headerDeadline, strconv.FormatInt(left.Milliseconds(), 10))
	// Without a value the header is not sent. Its presence permits package net/http to
	// repeat the call if the connection is broken.
	req.Header[headerKey] = x.key
	return req, nil
}

// parseRefusal parses an answer with an error. With an error that this package defines
// the relay has done nothing; after any other answer that is unsure.
func (rc *relayConn) parseRefusal(status int, body []byte) (unsure bool, err error) {
	var a refusalAnswer
	if err := json.Unmarshal(body, &a); err != nil || a.Error == "" {
		return true, rc.key.wrap(fmt.Errorf("%w: status %d", errAnswer, status))
	}
	cause, err := a.cause()
	if err != nil {
		return true, rc.key.wrap(fmt.Errorf("%w: %w", errAnswer, err))
	}
	return false, fmt.Errorf("%w: relay %v at %s says %q: %s", cause, rc.key.relay, rc.key.control, a.Error, a.Detail)
}

var _ Operator = remote{}

// Operator returns the relay for commands of operators. It opens no connection.
func (d *Dialer) Operator(n placement.Node) Operator {
	return remote{dialer: d, key: relayKey{relay: n.Relay, control: n.Control}}
}

func (r remote) Drain(ctx context.Context, d engine.DrainConfig) (operator.DrainState, error) {
	return r.callDrain(ctx, pathDrain, drainBody(d))
}

func (r remote) Undrain(ctx context.Context) (operator.DrainState, error) {
	return r.callDrain(ctx, pathUndrain, emptyCall{})
}

func (r remote) callDrain(ctx context.Context, path string, in any) (operator.DrainState, error) {
	var a drainAnswer
	if err := r.call(ctx, path, in, &a); err != nil {
		return operator.DrainState{}, err
	}
	state, err := a.state(time.Now())
	if err != nil {
		return operator.DrainState{}, r.wrap(err)
	}
	return state, nil
}

func (r remote) Kick(ctx context.Context, id proto.AllocationID) (existed bool, err error) {
	return r.callEnd(ctx, pathKick, id)
}

func (r remote) Close(ctx context.Context, id proto.AllocationID) (existed bool, err error) {
	return r.callEnd(ctx, pathClose, id)
}

func (r remote) callEnd(ctx context.Context, path string, id proto.AllocationID) (existed bool, err error) {
	var a endedAnswer
	err = r.call(ctx, path, idCall{ID: allocationID(id)}, &a)
	return a.There, err
}

func (r remote) Page(ctx context.Context, target string) (operator.Page, error) {
	var a operator.Page
	if err := r.exchange(ctx, exchange{path: pathPage, in: pageCall{Target: target}, out: &a, limit: maxPageAnswer}); err != nil {
		return operator.Page{}, err
	}
	if a.Status < 200 || a.Status > 599 || len(a.Body) > MaxPage {
		return operator.Page{}, r.wrap(fmt.Errorf("%w: a page of %d bytes with status %d", errAnswer, len(a.Body), a.Status))
	}
	return a, nil
}
