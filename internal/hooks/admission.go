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
	"github.com/ferryrelay/ferry/internal/outcall"
	"github.com/ferryrelay/ferry/proto"
)

// ErrConfig is wrapped by the errors of [NewAdmission], [NewWebhooks] and [NewTarget].
var ErrConfig = errors.New("hooks: bad configuration")

// The defaults of [AdmissionConfig].
const (
	DefaultAdmissionTimeout = time.Second
	DefaultConcurrent       = 64
)

const (
	maxResponse = 4 << 10 // bytes of a response body
	maxReason   = 200     // bytes of a reason
)

// The circuit breaker opens after breakerFailures consecutive failures. It stays open
// for breakerTimeout, and then lets one request through.
const (
	breakerFailures = 5
	breakerTimeout  = 5 * time.Second
)

// errCallerGone is reported to the circuit breaker for a request that its caller
// cancelled, which says nothing about the program.
var errCallerGone = errors.New("hooks: the caller has cancelled")

// Request is the JSON body that an admission program gets.
type Request struct {
	Call        string `json:"call"` // "allocate" or "join"
	Project     string `json:"project"`
	Environment string `json:"environment"`
	Player      string `json:"player"`
	Kind        string `json:"kind"` // "player" or "server"
	// Region and MaxConnections are those of the host's request.
	Region         string `json:"region,omitempty"`
	MaxConnections int    `json:"maxConnections,omitempty"`
	// Host is the allocation that belongs to a joining player's join code.
	Host string `json:"host,omitempty"`
}

// AdmissionConfig configures an [Admission]. A zero field selects its default.
type AdmissionConfig struct {
	// URL is the address of the program: https, or http on loopback, or with
	// AllowPrivate on a private network. Required.
	URL          string
	AllowPrivate bool
	// Secret signs requests. Nil: requests are not signed.
	Secret []byte
	// Timeout bounds a request, including the wait for its turn. 0: 1 s.
	Timeout time.Duration
	// FailOpen admits players when the program gives no valid response.
	FailOpen bool
	// Concurrent is the maximum number of concurrent requests. 0: 64.
	Concurrent int
	// Transport replaces the network in tests. Nil: a transport of its own.
	Transport http.RoundTripper
	// Logger gets a line when the program stops answering and when it answers again, one a
	// minute for requests that fail in between, and the reason of each at debug level. Nil:
	// no log.
	Logger *slog.Logger
	// Now is the clock of signatures. Nil: time.Now.
	Now func() time.Time
}

// Admission asks a program of the operator whether a reservation is admitted. Its
// methods may be called concurrently.
type Admission struct {
	cfg      AdmissionConfig
	endpoint *outcall.Endpoint
	slots    chan struct{} // holds one value for each request in progress
	breaker  *gobreaker.TwoStepCircuitBreaker[struct{}]

	allowed, denied, failed, skipped atomic.Uint64
	lastError                        atomic.Pointer[error] // of a request without a valid response
	lastWarned                       atomic.Int64          // Unix time of warn's last line
}

// NewAdmission returns an Admission, or an error that wraps ErrConfig. It opens no
// connection.
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
		URL: cfg.URL, AllowPrivate: cfg.AllowPrivate, Timeout: cfg.Timeout,
		KeepAlive: cfg.Concurrent, Transport: cfg.Transport,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a := &Admission{cfg: cfg, endpoint: e, slots: make(chan struct{}, cfg.Concurrent)}
	a.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:       breakerTimeout,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		IsExcluded:    func(err error) bool { return errors.Is(err, errCallerGone) },
		OnStateChange: a.logState,
	})
	return a, nil
}

// logState logs that the program stopped answering, and that it answers again. Between the
// two, one request each breakerTimeout tries.
func (a *Admission) logState(_ string, from, to gobreaker.State) {
	switch {
	case from == gobreaker.StateClosed:
		effect := map[bool]string{false: "players are refused", true: "players are admitted without it"}[a.cfg.FailOpen]
		var cause error
		if last := a.lastError.Load(); last != nil {
			cause = *last
		}
		a.cfg.Logger.Error("admission: the program at admission_url does not answer: "+effect, "failures", breakerFailures, "error", cause)
	case to == gobreaker.StateClosed:
		a.cfg.Logger.Info("admission: the program at admission_url answers again")
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

// Close closes idle connections. Call it after the last call of Admit.
func (a *Admission) Close() { a.endpoint.Close() }

// Admit returns nil if q is admitted, and alloc.DeniedError if it is not. Without a
// valid response it returns nil if FailOpen is set, else an error that wraps
// alloc.ErrAdmissionUnavailable.
func (a *Admission) Admit(ctx context.Context, q alloc.AdmissionRequest) error {
	done, err := a.breaker.Allow()
	if err != nil {
		a.skipped.Add(1)
		return a.fallback(fmt.Errorf("too many requests failed: %w", err))
	}
	response, err := a.send(ctx, newRequest(q))
	if err != nil && ctx.Err() != nil {
		done(errCallerGone)
	} else {
		if err != nil {
			a.lastError.Store(&err)
			a.warn(err)
		}
		done(err)
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
	return alloc.DeniedError{Reason: clean(response.Reason)}
}

// fallback returns the result of Admit for a request without a valid response.
func (a *Admission) fallback(cause error) error {
	a.cfg.Logger.Debug("admission: no valid response", "fail_open", a.cfg.FailOpen, "error", cause)
	if a.cfg.FailOpen {
		return nil
	}
	return fmt.Errorf("hooks: %w: %w", alloc.ErrAdmissionUnavailable, cause)
}

// response is a valid response of the program.
type response struct {
	Allow  bool
	Reason string
}

// send sends a request when it is its turn, and returns the response.
func (a *Admission) send(ctx context.Context, q Request) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return response{}, fmt.Errorf("%d requests are in progress: %w", a.cfg.Concurrent, ctx.Err())
	}
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

// parseResponse parses a response, in which the member allow is required.
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

// newRequest returns the body of an admission request.
func newRequest(q alloc.AdmissionRequest) Request {
	out := Request{
		Call: "allocate", Kind: kindOf(q.Caller), Player: q.Caller.Player,
		Project: q.Caller.Tenant.Project, Environment: q.Caller.Tenant.Environment,
		Region: q.Region, MaxConnections: q.MaxConnections,
	}
	if q.Role == alloc.RoleJoiner {
		out.Call = "join"
	}
	if q.Host != (proto.AllocationID{}) {
		out.Host = q.Host.String()
	}
	return out
}

func kindOf(c alloc.Caller) string {
	if c.Server {
		return "server"
	}
	return "player"
}

// clean returns a reason that can be displayed: without control characters, and of
// maxReason bytes at most.
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

// AdmissionStats are counts since NewAdmission.
type AdmissionStats struct {
	Allowed, Denied uint64
	Failed          uint64 // requests without a valid response
	Skipped         uint64 // requests that were not sent because the circuit breaker was open
	BreakerOpen     bool
}

// Stats returns the counts. It may be called at any time.
func (a *Admission) Stats() AdmissionStats {
	return AdmissionStats{
		Allowed: a.allowed.Load(), Denied: a.denied.Load(), Failed: a.failed.Load(), Skipped: a.skipped.Load(),
		BreakerOpen: a.breaker.State() == gobreaker.StateOpen,
	}
}
