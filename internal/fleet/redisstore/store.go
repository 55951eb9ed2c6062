package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

var (
	_ placement.Directory = (*Directory)(nil)
	_ placement.Registry  = (*Registry)(nil)
)

// Store is the state of a fleet in Redis, in parts that share the connections to the servers. The
// methods of all parts may be called concurrently. All calls but Forget wait for the servers for at most
// Config.Timeout. They fail with an error that wraps alloc.ErrStoreUnavailable, at once while the breaker
// is open.
type Store struct {
	Directory *Directory
	Registry  *Registry
	APIs      *APIRegistry
	Bans      *Bans
	Leases    *Leases
	Buckets   *Buckets
	Regions   *Regions

	calls *client
	seals *sealer
}

type Directory struct {
	*hostStore   // SetHome, HomeOf, Renew, Drop
	*codeStore   // PutCode, MoveCode, HostOf, CodeOf, Codes
	*forgetQueue // Forget
}

// New returns the store at c.URL. It opens no connection; [Store.Ping] does. Close
// closes the connections.
func New(c Config) (*Store, error) {
	c = c.withDefaults()
	address, err := ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	calls, keys := newClient(address, &c), keys{c.Prefix}
	seals := &sealer{calls: calls, keys: keys, signer: c.Signer}
	return &Store{
		Directory: &Directory{
			&hostStore{calls: calls, keys: keys, seals: seals, ttl: c.HostTTL},
			&codeStore{calls: calls, keys: keys, seals: seals, ttl: c.HostTTL},
			&forgetQueue{calls: calls, keys: keys, hosts: make(chan proto.AllocationID, forgetCapacity)},
		},
		Registry: &Registry{calls: calls, keys: keys, seals: seals, announced: make(map[alloc.RelayID]announced)},
		APIs:     &APIRegistry{calls: calls, keys: keys, seals: seals},
		Bans:     &Bans{calls: calls, key: keys.bans()},
		Leases:   &Leases{calls: calls, keys: keys},
		Buckets:  &Buckets{calls: calls, keys: keys},
		Regions:  calls.regions,
		calls:    calls, seals: seals,
	}, nil
}

// Run removes the codes of hosts that Forget queued, until ctx is done. It then removes
// the rest while the store answers; other codes expire. Run returns nil, and leaves no
// goroutine.
func (s *Store) Run(ctx context.Context) error {
	s.Directory.forgetQueue.run(ctx)
	return nil
}

// Close ends all connections. Calls fail from there on.
func (s *Store) Close() error {
	if err := s.calls.redis.close(); err != nil {
		return fmt.Errorf("redisstore: close: %w", err)
	}
	return nil
}

// Ping connects to the store of a configuration, whose Signer may be nil, and returns nil if
// it answers.
func Ping(ctx context.Context, c Config) error {
	c = c.withDefaults()
	address, err := ParseURL(c.URL)
	if err != nil {
		return err
	}
	client := connect(address, c)
	return errors.Join(client.ping(ctx), client.close())
}

// Ping returns nil if the store answers.
func (s *Store) Ping(ctx context.Context) error {
	return s.calls.do(ctx, "ping", func(ctx context.Context) error { return s.calls.redis.ping(ctx) })
}

// LoginError returns the error of a server that has refused the user, the password or its rights since
// New, so that no call has succeeded; nil otherwise.
func (s *Store) LoginError() error {
	if err := s.calls.login.refusal.Load(); err != nil && !s.calls.login.accepted.Load() {
		return *err
	}
	return nil
}

type Stats struct {
	// Calls were begun, Failed got no answer or an error for one, Refused were
	// turned away by the breaker and are in neither.
	Calls, Failed, Refused uint64
	Opened, Closed         uint64
	Open                   bool
	// Damaged are values in the store that this program did not write.
	Damaged uint64
	// Unverified are entries without a valid signature of a relay or an API process,
	// counted at each reading. They count as absent.
	Unverified uint64
	// Forgotten are hosts whose code was dropped after Forget, Overflow those
	// that Forget had no room for: their codes end by themselves.
	Forgotten, Overflow uint64
	Connections, Idle   int
}

// Stats returns the counts. It does not wait for the store.
func (s *Store) Stats() Stats {
	c, forget := s.calls, s.Directory.forgetQueue
	st := Stats{
		Calls: c.calls.Load(), Failed: c.failed.Load(), Damaged: c.damaged.Load(), Unverified: s.seals.unverified.Load(),
		Forgotten: forget.forgotten.Load(), Overflow: forget.overflow.Load(),
		Open: c.isOpen(), Opened: c.opened.Load(), Closed: c.closed.Load(), Refused: c.refused.Load(),
	}
	st.Connections, st.Idle = c.redis.connections()
	return st
}
