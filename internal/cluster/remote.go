package cluster

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
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

// remote is a relay as the API calls it: its key and the dialer.
type remote struct {
	dialer *Dialer
	name   relayKey
}

var (
	_ fleet.Remote = remote{}
	_ fleet.Ender  = remote{}
)

// ReserveHost asks the relay. What it may have made, without our hearing of it,
// is cancelled.
func (r remote) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	if err := checkTenant(q.Tenant); err != nil {
		return alloc.Reservation{}, err
	}
	return r.reserve(ctx, pathReserveHost, reserveHostBody(q))
}

// ReserveJoiner is the same for a joiner.
func (r remote) ReserveJoiner(ctx context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	if err := checkTenant(q.Tenant); err != nil {
		return alloc.Reservation{}, err
	}
	return r.reserve(ctx, pathReserveJoiner, reserveJoinerBody(q))
}

// sendable refuses names that JSON would change on the way, and that so would
// be another tenant's when they arrive.
func checkTenant(t alloc.Tenant) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if !utf8.ValidString(t.Project) || !utf8.ValidString(t.Environment) {
		return fmt.Errorf("%w: it is not UTF-8", alloc.ErrTenantName)
	}
	return nil
}

// Describe asks the relay about a live allocation.
func (r remote) Describe(ctx context.Context, id proto.AllocationID) (alloc.Description, error) {
	var a descriptionAnswer
	err := r.ask(ctx, pathDescribe, idCall{ID: id.String()}, &a)
	if err != nil {
		return alloc.Description{}, err
	}
	d, err := a.description()
	if err != nil {
		return alloc.Description{}, r.lost(err)
	}
	return d, nil
}

// KeepCode tells the relay the code of its host.
func (r remote) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	return r.ask(ctx, pathKeepCode, keepCodeCall{Host: host.String(), Code: code}, &emptyAnswer{})
}

// End ends a reservation that was answered, and that cannot be used.
func (r remote) End(ctx context.Context, id proto.AllocationID) error {
	return r.ask(ctx, pathEnd, idCall{ID: id.String()}, &emptyAnswer{})
}

// ask makes a call that nothing has to be taken back of.
func (r remote) ask(ctx context.Context, path string, in, out any) error {
	return r.exchange(ctx, exchange{path: path, in: in, out: out})
}

// exchange makes a call that has no key.
func (r remote) exchange(ctx context.Context, x exchange) error {
	l, life, err := r.dialer.acquire(r.name)
	if err != nil {
		return err
	}
	defer r.dialer.release(l)
	x.key = []string{}
	_, err = l.call(ctx, life, x)
	return err
}

// reserve makes a call with a key, and cancels it if the relay may have made a
// reservation that has not come here.
func (r remote) reserve(ctx context.Context, path string, in any) (alloc.Reservation, error) {
	l, life, err := r.dialer.acquire(r.name)
	if err != nil {
		return alloc.Reservation{}, err
	}
	defer r.dialer.release(l)
	k := newKey()
	var a reservationAnswer
	unsure, err := l.call(ctx, life, exchange{path: path, key: []string{k.String()}, in: in, out: &a})
	if err == nil {
		var res alloc.Reservation
		if res, err = a.reservation(); err == nil {
			return res, nil
		}
		unsure, err = true, r.lost(err)
	}
	if unsure {
		r.dialer.queueCancellation(l, k)
	}
	return alloc.Reservation{}, err
}

// lost wraps what went wrong with an answer.
func (r remote) lost(err error) error { return r.name.lost(err) }

func (n relayKey) lost(err error) error {
	return fmt.Errorf("%w: relay %v at %s: %w", alloc.ErrUnavailable, n.relay, n.control, err)
}

// exchange is one call: what is sent, and where the answer goes.
type exchange struct {
	path    string
	key     []string // none or one
	in, out any
	most    int // bytes of the answer; 0: maxAnswer
}

// call makes one call, until ctx or the dialer ends. Its error is one of package
// alloc. It reports unsure when there is an error and the relay may have done
// what it was asked all the same.
func (l *relayConn) call(ctx, life context.Context, x exchange) (unsure bool, err error) {
	ctx, cancel := withDefaultDeadline(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	giveBack, err := l.acquireSlot(ctx)
	if err != nil {
		return false, err
	}
	defer giveBack()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	req, err := l.request(ctx, x)
	if err != nil {
		return false, err
	}
	res, err := l.transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		// An alert means that the handshake failed, of which TLS 1.3 lets the
		// caller know only with its first answer.
		_, alert := errors.AsType[tls.AlertError](err)
		return sent.Load() && !alert, l.name.lost(err)
	}
	defer func() { _ = res.Body.Close() }()
	most := cmp.Or(x.most, maxAnswer)
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(most)+1))
	switch {
	case err != nil:
		return true, l.name.lost(err)
	case len(body) > most:
		return true, l.name.lost(fmt.Errorf("%w: more than %d bytes", errAnswer, most))
	case res.StatusCode == http.StatusOK:
		if err := json.Unmarshal(body, x.out); err != nil {
			return true, l.name.lost(fmt.Errorf("%w: %w", errAnswer, err))
		}
		return false, nil
	}
	unsure, err = l.parseRefusal(res.StatusCode, body)
	// A relay may see that its caller has given up before the caller hears of it, and
	// say so; what it was asked goes on there.
	return unsure || ctx.Err() != nil, err
}

// withDefaultDeadline returns ctx with the deadline that every call has.
func withDefaultDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultDeadline)
}

// request returns the request of a call that has what is left until the deadline
// of ctx.
func (l *relayConn) request(ctx context.Context, x exchange) (*http.Request, error) {
	until, _ := ctx.Deadline()
	left := min(time.Until(until), maxDeadline)
	if left < time.Millisecond || ctx.Err() != nil {
		return nil, l.name.lost(context.DeadlineExceeded)
	}
	body, err := json.Marshal(x.in)
	if err != nil {
		return nil, l.name.lost(err)
	}
	target := url.URL{Scheme: "https", Host: l.name.control, Path: x.path}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, l.name.lost(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(headerDeadline, strconv.FormatInt(left.Milliseconds(), 10))
	// Without a value the header is not sent, and still says that the call may be
	// sent anew if its connection turns out to be dead (package net/http).
	req.Header[headerKey] = x.key
	return req, nil
}

// parseRefusal reads the answer to a call that was not served. Where it is a verdict
// nothing was done; anything else is unsure.
func (l *relayConn) parseRefusal(status int, body []byte) (unsure bool, err error) {
	var a refusalAnswer
	if err := json.Unmarshal(body, &a); err != nil || a.Error == "" {
		return true, l.name.lost(fmt.Errorf("%w: status %d", errAnswer, status))
	}
	return false, fmt.Errorf("%w: relay %v at %s says %q: %s", errorNamed(a.Error), l.name.relay, l.name.control, a.Error, a.Detail)
}

var _ Operator = remote{}

// Operator returns the same relay as [Dialer.Relay] does, for what an operator
// has it do. It does not connect.
func (d *Dialer) Operator(n fleet.Node) Operator {
	return remote{dialer: d, name: relayKey{relay: n.Relay, control: n.Control}}
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
