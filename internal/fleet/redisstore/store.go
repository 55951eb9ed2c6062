package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

var (
	_ placement.Directory = (*Store)(nil)
	_ placement.Registry  = (*Store)(nil)
)

// Store is the state of a fleet in Redis. Its methods may be called concurrently. All
// calls but Forget wait for the servers for at most Config.Timeout. They fail with an
// error that wraps alloc.ErrStoreUnavailable, at once while the breaker is open.
type Store struct {
	client  redis.UniversalClient
	kind    Kind
	keys    keys
	timeout time.Duration
	holdFor time.Duration
	logger  *slog.Logger
	signer  placement.Signer
	Regions *Regions
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	// lastError is the latest failure of a call. The lock of the breaker guards it.
	lastError error

	login login

	forget chan proto.AllocationID // to Run

	published published

	mu               sync.Mutex // guards the following fields; entries for no call
	announced        map[alloc.RelayID]announced
	unverifiedLogged time.Time

	calls      atomic.Uint64
	failed     atomic.Uint64
	damaged    atomic.Uint64
	unverified atomic.Uint64
	forgotten  atomic.Uint64
	overflow   atomic.Uint64
	opened     atomic.Uint64
	closed     atomic.Uint64
	refused    atomic.Uint64
}

// New returns the store at c.URL. It opens no connection; [Store.Ping] does. Close
// closes the connections.
func New(c Config) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Signer == nil {
		return nil, errors.New("redisstore: Signer is nil")
	}
	c = c.withDefaults()
	address, err := ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	failures := uint32(failuresAlone)
	if address.Kind == Cluster {
		failures = failuresCluster
	}
	s := &Store{
		client: connect(address, c), kind: address.Kind, keys: keys{c.Prefix},
		timeout: c.Timeout, holdFor: c.HostTTL, logger: c.Logger, signer: c.Signer, forget: make(chan proto.AllocationID, forgetQueue),
		announced: make(map[alloc.RelayID]announced),
	}
	s.Regions = newRegions(&c, s.client)
	s.breaker = s.newBreaker(failures)
	return s, nil
}

// Close ends all connections. Calls fail from there on.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil {
		return fmt.Errorf("redisstore: close: %w", err)
	}
	return nil
}

// Ping connects to the store of a configuration, whose Signer may be nil, and returns nil if
// it answers.
func Ping(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	c = c.withDefaults()
	address, err := ParseURL(c.URL)
	if err != nil {
		return err
	}
	client := connect(address, c)
	return errors.Join(client.Ping(ctx).Err(), client.Close())
}

// login is whether the servers accept the user.
type login struct {
	accepted atomic.Bool           // a call has succeeded
	refusal  atomic.Pointer[error] // the last one before that; nil: none
}

// LoginError returns the error of a server that has refused the user, the password or its rights since
// New, so that no call has succeeded; nil otherwise.
func (s *Store) LoginError() error {
	if err := s.login.refusal.Load(); err != nil && !s.login.accepted.Load() {
		return *err
	}
	return nil
}

// noteResult records whether the server accepts the user.
func (s *Store) noteResult(err error) {
	switch {
	case err == nil:
		if !s.login.accepted.Load() {
			s.login.accepted.Store(true)
		}
	case !s.login.accepted.Load() && isLoginError(err):
		refused := fmt.Errorf("the server refuses the user, the password or a right of the user: %w", err)
		if s.login.refusal.Swap(&refused) == nil {
			s.logger.Error("the store refuses the user of this process: check store and store_password_file", "error", err)
		}
	}
}

// isLoginError reports whether a server has refused the user of the connection. The client library
// wraps some of these errors in its own.
func isLoginError(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{"WRONGPASS ", "NOAUTH ", "NOPERM ", "ERR AUTH "}, func(code string) bool {
		return strings.Contains(text, code)
	})
}

// Ping returns nil if the store answers.
func (s *Store) Ping(ctx context.Context) error {
	return s.do(ctx, "ping", func(ctx context.Context) error { return s.client.Ping(ctx).Err() })
}

// Stats are numbers since New.
type Stats struct {
	// Calls were begun, Failed got no answer or an error for one, Refused were
	// turned away by the breaker and are in neither.
	Calls, Failed, Refused uint64
	// Opened and Closed are how often the breaker did so, Open whether it is open.
	Opened, Closed uint64
	Open           bool
	// Damaged are values in the store that this program did not write.
	Damaged uint64
	// Unverified are entries without a valid signature of a relay or an API process,
	// counted at each reading. They count as absent.
	Unverified uint64
	// Forgotten are hosts whose code was dropped after Forget, Overflow those
	// that Forget had no room for: their codes end by themselves.
	Forgotten, Overflow uint64
	// Connections are open, Idle ones not in use.
	Connections, Idle int
}

// Stats returns the counts. It does not wait for the store.
func (s *Store) Stats() Stats {
	st := Stats{
		Calls: s.calls.Load(), Failed: s.failed.Load(), Damaged: s.damaged.Load(), Unverified: s.unverified.Load(),
		Forgotten: s.forgotten.Load(), Overflow: s.overflow.Load(),
		Open: s.isOpen(), Opened: s.opened.Load(), Closed: s.closed.Load(), Refused: s.refused.Load(),
	}
	if pool, ok := s.client.(*redis.Client); ok { // A cluster's may ask the servers.
		p := pool.PoolStats()
		st.Connections, st.Idle = int(p.TotalConns), int(p.IdleConns)
	}
	return st
}
