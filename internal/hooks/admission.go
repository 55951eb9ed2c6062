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

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/outcall"
	"github.com/ferryrelay/ferry/proto"
)

// ErrConfig is wrapped by what [NewAdmission] and [NewWebhooks] refuse.
var ErrConfig = errors.New("hooks: bad configuration")

// The defaults of [AdmissionConfig].
const (
	DefaultAdmissionTimeout = time.Second
	DefaultConcurrent       = 64
)

const (
	maxAnswer = 4 << 10 // bytes of an answer
	maxReason = 200     // bytes of a reason
)

// Request is what an admission program is asked.
type Request struct {
	Call        string `json:"call"` // "allocate" or "join"
	Project     string `json:"project"`
	Environment string `json:"environment"`
	Player      string `json:"player"`
	Kind        string `json:"kind"` // "player" or "server"
	// Region and MaxConnections are what a host asked for.
	Region         string `json:"region,omitempty"`
	MaxConnections int    `json:"maxConnections,omitempty"`
	// Host is the allocation to which a player's join code leads.
	Host string `json:"host,omitempty"`
}

// AdmissionConfig is what an [Admission] is made of. Zero stands for the
// defaults.
type AdmissionConfig struct {
	// URL is whom to ask: https, or http on this machine, or with AllowPrivate on
	// a private network.
	URL          string
	AllowPrivate bool
	// Secret signs questions. Nil: they are not signed.
	Secret []byte
	// Timeout bounds a question with all that belongs to it.
	Timeout time.Duration
	// FailOpen lets everybody in to whom there is no answer.
	FailOpen bool
	// Concurrent is how many questions are under way at most.
	Concurrent int
	// Transport replaces the way to the network, for tests. Nil: an own one.
	Transport http.RoundTripper
	// Logger hears why there was no answer. Nil: nobody.
	Logger *slog.Logger
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
}

// Admission asks a program of the operator's who may play. Many goroutines may
// use it; its places are a channel, its breaker has a lock, its counters are
// atomic.
type Admission struct {
	cfg      AdmissionConfig
	endpoint *outcall.Endpoint
	places   chan struct{}
	breaker  breaker

	allowed, denied, unanswered, unasked atomic.Uint64
}

// NewAdmission returns an admission, or an error that wraps ErrConfig. It
// connects to nothing.
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
	return &Admission{cfg: cfg, endpoint: e, places: make(chan struct{}, cfg.Concurrent)}, nil
}

// Close closes the connections that wait for the next question. To be called
// when nobody asks any more.
func (a *Admission) Close() { a.endpoint.Close() }

// Admit asks whether a may be reserved: nil, or alloc.Denied, or, without an
// answer and unless FailOpen is set, alloc.ErrAdmissionUnavailable.
func (a *Admission) Admit(ctx context.Context, q alloc.AdmissionRequest) error {
	now := a.cfg.Now()
	if !a.breaker.enter(now) {
		a.unasked.Add(1)
		return a.without(errors.New("it failed too often, and has a rest"))
	}
	verdict, err := a.ask(ctx, question(q))
	// A caller that has gone says nothing about the program.
	a.breaker.leave(a.cfg.Now(), err == nil, err != nil && ctx.Err() != nil)
	switch {
	case err != nil:
		a.unanswered.Add(1)
		return a.without(err)
	case verdict.Allow:
		a.allowed.Add(1)
		return nil
	}
	a.denied.Add(1)
	return alloc.DeniedError{Reason: clean(verdict.Reason)}
}

// without is the answer where there is none.
func (a *Admission) without(why error) error {
	a.cfg.Logger.Debug("admission: no answer", "fail_open", a.cfg.FailOpen, "why", why)
	if a.cfg.FailOpen {
		return nil
	}
	return fmt.Errorf("hooks: %w: %w", alloc.ErrAdmissionUnavailable, why)
}

// verdict is an answer.
type verdict struct {
	Allow  bool
	Reason string
}

// ask waits for a place and then for the answer.
func (a *Admission) ask(ctx context.Context, q Request) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	select {
	case a.places <- struct{}{}:
		defer func() { <-a.places }()
	case <-ctx.Done():
		return verdict{}, fmt.Errorf("%d questions are under way: %w", a.cfg.Concurrent, ctx.Err())
	}
	body, err := json.Marshal(q)
	if err != nil {
		return verdict{}, err
	}
	header := make(http.Header)
	if a.cfg.Secret != nil {
		header.Set(SignatureHeader, Sign(a.cfg.Secret, body, a.cfg.Now()))
	}
	answer, err := a.endpoint.Post(ctx, header, body, maxAnswer)
	switch {
	case err != nil:
		return verdict{}, err
	case answer.Status != http.StatusOK:
		return verdict{}, fmt.Errorf("%s answered with status %d", a.endpoint.Host(), answer.Status)
	}
	return parseVerdict(answer.Body)
}

// parseVerdict reads an answer. One without a word about allow is none.
func parseVerdict(body []byte) (verdict, error) {
	var in struct {
		Allow  *bool  `json:"allow"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return verdict{}, fmt.Errorf("the answer: %w", err)
	}
	if in.Allow == nil {
		return verdict{}, errors.New("the answer has no allow")
	}
	return verdict{*in.Allow, in.Reason}, nil
}

// question tells the program what is asked for.
func question(q alloc.AdmissionRequest) Request {
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

// clean makes a reason fit to be shown: no control characters, and not for ever.
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

// AdmissionStats are counts since the start.
type AdmissionStats struct {
	Allowed, Denied uint64
	Failed          uint64 // asked, and no answer
	Skipped         uint64 // not asked, after too many without an answer
	BreakerOpen     bool
}

// Stats returns the counts.
func (a *Admission) Stats() AdmissionStats {
	return AdmissionStats{
		Allowed: a.allowed.Load(), Denied: a.denied.Load(), Failed: a.unanswered.Load(), Skipped: a.unasked.Load(),
		BreakerOpen: a.breaker.resting(a.cfg.Now()),
	}
}
