package rpc

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/proto"
)

// fakeOperator records the commands of operators and applies them to the fake relay.
type fakeOperator struct {
	relay *alloctest.Relay

	mu    sync.Mutex // guards the following fields
	fail  error      // what every method answers when it is not nil
	state operator.DrainState
	asked []engine.DrainConfig
}

func (f *fakeOperator) set(fail error, state operator.DrainState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.state = fail, state
}

func (f *fakeOperator) answer() (operator.DrainState, error) {
	if f.fail != nil {
		return operator.DrainState{}, f.fail
	}
	return f.state, nil
}

func (f *fakeOperator) Drain(_ context.Context, d engine.DrainConfig) (operator.DrainState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, d)
	return f.answer()
}

func (f *fakeOperator) Undrain(context.Context) (operator.DrainState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = operator.DrainState{Allocations: f.state.Allocations}
	return f.answer()
}

// Page returns a page whose size and status the target specifies.
func (f *fakeOperator) Page(_ context.Context, target string) (operator.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return operator.Page{}, f.fail
	}
	var p operator.Page
	var n int
	if _, err := fmt.Sscanf(target, "/%d?%d", &p.Status, &n); err != nil {
		return operator.Page{Status: 404, Body: []byte(target)}, nil
	}
	p.Body = bytes.Repeat([]byte{'x'}, n)
	return p, nil
}

// Kick rejects hosts, as a relay does.
func (f *fakeOperator) Kick(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	if d, err := f.relay.Describe(ctx, id); err == nil && d.Role == alloc.RoleHost {
		return false, fmt.Errorf("deep inside: %w", engine.ErrKickHost)
	}
	return f.Close(ctx, id)
}

// Close reports an unknown allocation for an id that begins with zero.
func (f *fakeOperator) Close(ctx context.Context, id proto.AllocationID) (there bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.fail != nil:
		return false, f.fail
	case id[0] == 0:
		return false, nil
	}
	return true, f.relay.End(ctx, id)
}

func TestOperatorDrains(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	remote := x.dialer.Operator(x.node())
	x.operator.set(nil, operator.DrainState{Draining: true, Final: true, Deadline: time.Now().Add(time.Hour), Threshold: 3, Allocations: 7})
	for _, want := range []struct{ ask, arrives engine.DrainConfig }{
		{engine.DrainConfig{Deadline: time.Hour, Threshold: 3}, engine.DrainConfig{Deadline: time.Hour, Threshold: 3}},
		{engine.DrainConfig{Deadline: 0, Threshold: 0}, engine.DrainConfig{Deadline: 0, Threshold: 0}},
		{engine.DrainConfig{Deadline: time.Nanosecond, Threshold: 1 << 26}, engine.DrainConfig{Deadline: time.Millisecond, Threshold: 1 << 26}},
		{engine.DrainConfig{Deadline: 168 * time.Hour, Threshold: 0}, engine.DrainConfig{Deadline: 168 * time.Hour, Threshold: 0}},
	} {
		before := time.Now()
		st, err := remote.Drain(testContext(t), want.ask)
		if err != nil {
			t.Fatal(err)
		}
		x.operator.mu.Lock()
		if got := x.operator.asked[len(x.operator.asked)-1]; got != want.arrives {
			t.Errorf("%+v arrives as %+v", want.ask, got)
		}
		left := x.operator.state.Deadline.Sub(before)
		x.operator.mu.Unlock()
		if d := st.Deadline.Sub(before); !st.Draining || !st.Final || st.Threshold != 3 || st.Allocations != 7 || d < left-time.Second ||
			d > testTimeout+time.Hour {
			t.Errorf("answered %+v, %v left", st, d)
		}
	}
	if _, err := remote.Drain(testContext(t), engine.DrainConfig{Deadline: -5 * time.Hour, Threshold: -9}); err != nil {
		t.Fatal(err)
	}
	x.operator.mu.Lock()
	if got := x.operator.asked[len(x.operator.asked)-1]; got.Deadline >= 0 || got.Threshold >= 0 {
		t.Errorf("what the relay's settings say arrives as %+v", got)
	}
	x.operator.mu.Unlock()
	st, err := remote.Undrain(testContext(t))
	if err != nil || !reflect.DeepEqual(st, operator.DrainState{Allocations: 7}) {
		t.Errorf("undrain: %+v, %v", st, err)
	}
	for _, d := range []engine.DrainConfig{{Deadline: 169 * time.Hour}, {Threshold: 1<<26 + 1}} {
		_, err := remote.Drain(testContext(t), d)
		wantUnavailable(t, err)
	}
	for err, want := range map[error]error{
		fmt.Errorf("deep inside: %w", operator.ErrFinal): operator.ErrFinal, alloc.ErrUnavailable: alloc.ErrUnavailable,
		errors.New("secret"): alloc.ErrUnavailable,
	} {
		x.operator.set(err, operator.DrainState{})
		_, drainErr := remote.Drain(testContext(t), engine.DrainConfig{})
		_, undrainErr := remote.Undrain(testContext(t))
		if !errors.Is(drainErr, want) || !errors.Is(undrainErr, want) || strings.Contains(drainErr.Error(), "secret") {
			t.Errorf("%v arrives as %v and %v", err, drainErr, undrainErr)
		}
	}
	if st := x.server.Stats(); st.OperatorCalls != 6 {
		t.Errorf("%d calls are counted, want 6", st.OperatorCalls)
	}
}

func TestOperatorEnds(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	remote := x.dialer.Operator(x.node())
	host, err := x.remote().ReserveHost(testContext(t), testHost())
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := x.remote().ReserveJoiner(testContext(t), alloc.JoinerRequest{
		Caller: alloc.Caller{Tenant: testHost().Tenant}, Host: host.ID,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Kick(testContext(t), host.ID); !errors.Is(err, engine.ErrKickHost) || errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("a host is kicked: %v", err)
	}
	for _, c := range []struct {
		what string
		do   func(context.Context, proto.AllocationID) (bool, error)
		id   proto.AllocationID
	}{{"kicked", remote.Kick, joiner.ID}, {"closed", remote.Close, host.ID}} {
		if there, err := c.do(testContext(t), c.id); err != nil || !there {
			t.Errorf("%s: %v, %v", c.what, there, err)
		}
		if _, err := c.do(testContext(t), c.id); !errors.Is(err, alloc.ErrNotFound) {
			t.Errorf("%s again: %v", c.what, err)
		}
		want := fmt.Sprintf("an allocation was %s\" allocation=%s by=api role=api from=127.0.0.1:", c.what, c.id)
		if n := strings.Count(x.log.String(), want); n != 1 {
			t.Errorf("the log has %d times %q:\n%s", n, want, x.log)
		}
	}
	if there, err := remote.Close(testContext(t), proto.AllocationID{1: 1}); err != nil || there ||
		!strings.Contains(x.log.String(), "barred from returning") {
		t.Errorf("one that may return: %v, %v", there, err)
	}
	if _, live := x.relay.Count(); live != 0 || x.server.Stats().OperatorCalls != 3 {
		t.Errorf("%d are left, %d calls are counted", live, x.server.Stats().OperatorCalls)
	}
	unknown := placement.Node{Relay: otherRelay, Control: x.server.Addr().String()}
	_, err = x.dialer.Operator(unknown).Close(testContext(t), host.ID)
	wantUnavailable(t, err)
}

func TestOperatorPage(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	remote := x.dialer.Operator(x.node())
	for _, n := range []int{0, 1, maxAnswer, MaxPage} {
		p, err := remote.Page(testContext(t), fmt.Sprintf("/409?%d", n))
		if err != nil || p.Status != 409 || len(p.Body) != n || strings.Trim(string(p.Body), "x") != "" {
			t.Errorf("a page of %d bytes: %d with status %d, %v", n, len(p.Body), p.Status, err)
		}
	}
	if p, err := remote.Page(testContext(t), "/allocations?role=host&limit=7"); err != nil ||
		string(p.Body) != "/allocations?role=host&limit=7" {
		t.Errorf("it was asked for %q, %v", p.Body, err)
	}
	for target, want := range map[string]string{
		fmt.Sprintf("/200?%d", MaxPage+1):    "more than",
		"/199?0":                             errAnswer.Error(),
		"/600?0":                             errAnswer.Error(),
		"allocations":                        "not a path",
		"":                                   "not a path",
		"/" + strings.Repeat("x", maxTarget): "not a path",
	} {
		p, err := remote.Page(testContext(t), target)
		if !errors.Is(err, alloc.ErrUnavailable) || !strings.Contains(err.Error(), want) || p.Body != nil {
			t.Errorf("%.40q: %d bytes, %v", target, len(p.Body), err)
		}
	}
	x.operator.set(alloc.ErrNotFound, operator.DrainState{})
	if _, err := remote.Page(testContext(t), "/200?0"); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("a relay that fails: %v", err)
	}
}

// TestOperatorRole checks that an operator's certificate permits the calls of an
// operator only, and a relay's none. The log has the name in the certificate.
func TestOperatorRole(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	x.operator.set(nil, operator.DrainState{Draining: true})
	const id = `{"id":"10111213-1415-1617-1819-1a1b1c1d1e1f"}`
	asks := map[string]struct{ body, want string }{
		pathDrain: {`{"deadlineMs":-1,"threshold":0}`, ""}, pathUndrain: {"{}", ""},
		pathKick: {id, "not-found"}, pathClose: {id, "not-found"}, pathPage: {`{"target":"/200?1"}`, ""},
		pathEnd: {id, "forbidden"}, pathCancel: {`{"keys":[]}`, "forbidden"},
		pathReserveHost: {testHostOf4, "forbidden"},
	}
	clientAuth := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	alice := x.rawClient(t, forge(t, x.ca, Request{Role: RoleAdmin, Name: "alice\nlevel=ERROR"}, func(*x509.Certificate) {}))
	relay := x.rawClient(t, forge(t, x.ca, Request{Role: RoleRelay, Relay: testRelay}, clientAuth))
	for path, ask := range asks {
		status, body := x.post(t, alice, path, keyed(newKey()), ask.body)
		if ask.want == "" && status != http.StatusOK || ask.want != "" && (status < 400 || errorNameOf(t, body) != ask.want) {
			t.Errorf("an operator: %s: %d %s, want %q", path, status, body, ask.want)
		}
		if status, body := x.post(t, relay, path, keyed(newKey()), ask.body); status != http.StatusForbidden {
			t.Errorf("a relay: %s: %d %s", path, status, body)
		}
	}
	if log := x.log.String(); strings.Count(log, `by="alice\nlevel=ERROR" role=admin`) != 2 || strings.Contains(log, "\nlevel=ERROR") {
		t.Errorf("the log lacks the caller, or has more: %s", log)
	}
	if n := len(x.operator.asked); n != 1 {
		t.Errorf("the relay was asked to drain %d times, want 1", n)
	}
}
