package hooks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/sony/gobreaker/v2"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/server/players/outcall"
)

// ErrConfig is wrapped by the errors of [NewAdmission] and [NewTarget].
var ErrConfig = errors.New("hooks: bad configuration")

const (
	DefaultAdmissionTimeout = time.Second
	DefaultConcurrent       = 64
)

const (
	maxResponse = 4 << 10 // bytes of a response body
	maxReason   = 200     // bytes of a reason
)

type Request struct {
	Call           string `json:"call"` // "allocate", "join" or "migrate"
	Project        string `json:"project"`
	Environment    string `json:"environment"`
	Player         string `json:"player"`
	Kind           string `json:"kind"` // "player" or "server"
	Region         string `json:"region,omitempty"`
	MaxConnections int    `json:"maxConnections,omitempty"`
	// Host is the allocation to which the join code of a join or a migrate leads.
	Host string `json:"host,omitempty"`
}

// AdmissionConfig configures an [Admission]. A zero field selects its default.
type AdmissionConfig struct {
	// URL is the address of the program: https, or http on loopback or a private
	// network. Required.
	URL string
	// Secret signs requests. Nil: requests are not signed.
	Secret []byte
	// Timeout bounds a request, and the wait for its turn before it. 0: 1 s.
	Timeout time.Duration
	// FailOpen admits players when the program gives no valid response.
	FailOpen bool
	// Concurrent is the maximum number of concurrent requests. 0: 64.
	Concurrent int
	// Transport replaces the network in tests. Nil: a transport of its own.
	Transport http.RoundTripper
	// Logger gets a line when the program stops answering a project, one a minute for all,
	// and when it answers it again, one a minute for requests that fail in between, and the
	// reason of each at debug level. Nil: no log.
	Logger *slog.Logger
	Now    func() time.Time
}

// Admission asks a program of the operator whether a reservation is admitted. It
// may be used concurrently.
type Admission struct {
	cfg      AdmissionConfig
	endpoint *outcall.Endpoint
	pool     *pool
	connects *breaker // of all projects, for requests without a connection

	allowed, denied, failed, skipped atomic.Uint64
	lastError                        atomic.Pointer[error] // of a request without a valid response
	lastWarned                       atomic.Int64          // Unix time of warn's last line
}

// NewAdmission opens no connection. Its errors wrap ErrConfig.
func NewAdmission(cfg AdmissionConfig) (*Admission, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultAdmissionTimeout)
	cfg.Concurrent = cmp.Or(cfg.Concurrent, DefaultConcurrent)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Secret != nil {
		if err := checkSecret(cfg.Secret); err != nil {
			return nil, err
		}
	}
	e, err := outcall.New(outcall.Config{
		URL: cfg.URL, AllowPrivate: true, Timeout: cfg.Timeout,
		KeepAlive: cfg.Concurrent, Transport: cfg.Transport,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a := &Admission{cfg: cfg, endpoint: e, pool: newPool(cfg.Concurrent, cfg.FailOpen, cfg.Logger)}
	a.connects = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:       breakerTimeout,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		IsExcluded:    isNotCounted,
		OnStateChange: a.logConnects,
	})
	return a, nil
}

// Between the two lines of logConnects, one request each breakerTimeout tries.
func (a *Admission) logConnects(_ string, from, to gobreaker.State) {
	switch {
	case from == gobreaker.StateClosed:
		var cause error
		if last := a.lastError.Load(); last != nil {
			cause = *last
		}
		a.cfg.Logger.Error("admission: no connection to the program at admission_url: "+a.pool.effect, "failures",
			breakerFailures, "error", cause)
	case to == gobreaker.StateClosed:
		a.cfg.Logger.Info("admission: the program at admission_url accepts connections again")
	}
}

// warn reports a failed request, one a minute: the breaker opens, with its own line, only
// after breakerFailures of them.
func (a *Admission) warn(cause error) {
	now, last := a.cfg.Now().Unix(), a.lastWarned.Load()
	if now-last >= 60 && a.lastWarned.CompareAndSwap(last, now) {
		a.cfg.Logger.Warn("admission: no valid response from admission_url", "error", cause)
	}
}

// Close must be called after the last call of Admit.
func (a *Admission) Close() { a.endpoint.Close() }

// Admit returns nil if q is admitted, and an alloc.ErrDenied if it is not. Without a
// valid response it returns nil if FailOpen is set, else an error that wraps
// alloc.ErrAdmissionUnavailable.
func (a *Admission) Admit(ctx context.Context, q alloc.AdmissionRequest) error {
	p := a.pool.enter(q.Caller.Tenant.Project)
	defer a.pool.leave(p)
	done, connected, err := a.allow(p)
	if err != nil {
		a.skipped.Add(1)
		return a.fallback(fmt.Errorf("too many requests failed: %w", err))
	}
	response, err := a.send(ctx, p, newRequest(q))
	switch {
	case err == nil:
		connected(nil)
		a.pool.report(p, done, nil)
	case ctx.Err() != nil, isNotCounted(err):
		connected(errNotCounted)
		a.pool.report(p, done, errNotCounted)
	default:
		a.lastError.Store(&err)
		a.warn(err)
		if errors.Is(err, outcall.ErrConnect) {
			connected(err)
			a.pool.report(p, done, errNotCounted)
			break
		}
		connected(nil)
		a.pool.report(p, done, err)
	}
	switch {
	case err != nil:
		a.failed.Add(1)
		return a.fallback(err)
	case response.Allow:
		a.allowed.Add(1)
		return nil
	}
	a.denied.Add(1)
	return alloc.RefusedError{Err: alloc.ErrDenied, Reason: clean(response.Reason)}
}

// allow asks the circuit breakers of a project and of all. Both must get the outcome of the
// request.
func (a *Admission) allow(p *project) (done, connected func(error), err error) {
	if done, err = p.breaker.Allow(); err != nil {
		return nil, nil, err
	}
	if connected, err = a.connects.Allow(); err != nil {
		done(errNotCounted)
		return nil, nil, err
	}
	return done, connected, nil
}

func (a *Admission) fallback(cause error) error {
	a.cfg.Logger.Debug("admission: no valid response", "fail_open", a.cfg.FailOpen, "error", cause)
	if a.cfg.FailOpen {
		return nil
	}
	return fmt.Errorf("hooks: %w: %w", alloc.ErrAdmissionUnavailable, cause)
}

type response struct {
	Allow  bool
	Reason string
}

func (a *Admission) send(ctx context.Context, p *project, q Request) (response, error) {
	turn, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	err := a.pool.acquire(turn, p)
	cancel()
	if err != nil {
		return response{}, fmt.Errorf("%d requests are in progress: %w: %w", a.cfg.Concurrent, errNotCounted, err)
	}
	defer a.pool.release(p)
	ctx, cancel = context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	body, err := json.Marshal(q)
	if err != nil {
		return response{}, err
	}
	header := make(http.Header)
	if a.cfg.Secret != nil {
		header.Set(SignatureHeader, Sign(a.cfg.Secret, body, a.cfg.Now()))
	}
	answer, err := a.endpoint.Post(ctx, header, body, maxResponse)
	switch {
	case err != nil:
		return response{}, err
	case answer.Status != http.StatusOK:
		return response{}, fmt.Errorf("%s answered with status %d", a.endpoint.Host(), answer.Status)
	}
	return parseResponse(answer.Body)
}

// The member allow is required.
func parseResponse(body []byte) (response, error) {
	var in struct {
		Allow  *bool  `json:"allow"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return response{}, fmt.Errorf("the response: %w", err)
	}
	if in.Allow == nil {
		return response{}, errors.New("the response has no member allow")
	}
	return response{*in.Allow, in.Reason}, nil
}

func newRequest(q alloc.AdmissionRequest) Request {
	out := Request{
		Call: "allocate", Kind: kindOf(q.Caller), Player: q.Caller.Player,
		Project: q.Caller.Tenant.Project, Environment: q.Caller.Tenant.Environment,
		Region: q.Region, MaxConnections: q.MaxConnections,
	}
	if !q.Host.IsZero() {
		out.Call, out.Host = "migrate", q.Host.String()
	}
	if q.Role == alloc.RoleJoiner {
		out.Call = "join"
	}
	return out
}

func kindOf(c alloc.Caller) string {
	if c.Server {
		return "server"
	}
	return "player"
}

// clean returns a reason of maxReason bytes at most, without control characters.
func clean(reason string) string {
	reason = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, reason), "")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	return strings.TrimSpace(reason)
}

type AdmissionStats struct {
	Allowed, Denied uint64
	Failed          uint64 // requests without a valid response
	Skipped         uint64 // requests that were not sent because a circuit breaker was open
	Resting         int    // open circuit breakers: those of projects, and that of all
}

// Stats returns the counts. It may be called at any time.
func (a *Admission) Stats() AdmissionStats {
	st := AdmissionStats{
		Allowed: a.allowed.Load(), Denied: a.denied.Load(), Failed: a.failed.Load(), Skipped: a.skipped.Load(),
		Resting: a.pool.openBreakers(),
	}
	if a.connects.State() != gobreaker.StateClosed {
		st.Resting++
	}
	return st
}
