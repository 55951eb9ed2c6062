package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

// Stores are all stores of a fleet: one, or one for each region. It has what concerns the whole fleet:
// bans, quotas, rate limits and the list of API processes. What belongs to a region is in its store alone,
// see placement.Regional. Its methods may be called concurrently. They ask all stores at once, so that
// one that does not answer delays no call by more than its timeout, and by nothing while its breaker is
// open.
type Stores struct {
	all []*Store

	mu      sync.Mutex // guards the following fields
	numbers []uint64   // of the last change of the bans that was read, by store
	lacking time.Time  // since when stores lack bans of others, while numbers stay; zero: none does
}

// NewStores returns these stores, at least one. Their order must be the same in all processes.
func NewStores(all ...*Store) *Stores { return &Stores{all: all, numbers: make([]uint64, len(all))} }

// All returns the stores.
func (s *Stores) All() []*Store { return s.all }

func (s *Stores) each(do func(i int, store *Store) error) []error {
	errs := make([]error, len(s.all))
	var calls sync.WaitGroup
	for i, store := range s.all {
		calls.Go(func() {
			if errs[i] = do(i, store); errs[i] != nil && store.Regions.Own() != "" {
				errs[i] = fmt.Errorf("store of region %s: %w", store.Regions.Own(), errs[i])
			}
		})
	}
	calls.Wait()
	return errs
}

func unlessAll(errs []error) error {
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// Run runs all stores until ctx is done.
func (s *Stores) Run(ctx context.Context) error {
	return errors.Join(s.each(func(_ int, store *Store) error { return store.Run(ctx) })...)
}

// Close ends all connections.
func (s *Stores) Close() error {
	return errors.Join(s.each(func(_ int, store *Store) error { return store.Close() })...)
}

// LoginError returns the errors of [Store.LoginError] if all stores have one: while one accepts this
// process, calls of its region work.
func (s *Stores) LoginError() error {
	return unlessAll(s.each(func(_ int, store *Store) error { return store.LoginError() }))
}

// RegionsError returns the errors of [Regions.Err] of all stores.
func (s *Stores) RegionsError() error {
	var errs []error
	for _, store := range s.all {
		errs = append(errs, store.Regions.Err())
	}
	return errors.Join(errs...)
}

// Stats returns the sums of all stores; Open is set if the breaker of one is open.
func (s *Stores) Stats() (sum Stats) {
	for _, store := range s.all {
		st := store.Stats()
		sum.Calls, sum.Failed, sum.Refused = sum.Calls+st.Calls, sum.Failed+st.Failed, sum.Refused+st.Refused
		sum.Opened, sum.Closed, sum.Open = sum.Opened+st.Opened, sum.Closed+st.Closed, sum.Open || st.Open
		sum.Damaged, sum.Unverified = sum.Damaged+st.Damaged, sum.Unverified+st.Unverified
		sum.Forgotten, sum.Overflow = sum.Forgotten+st.Forgotten, sum.Overflow+st.Overflow
		sum.Connections, sum.Idle = sum.Connections+st.Connections, sum.Idle+st.Idle
	}
	return sum
}

// AnnounceAPI is [APIRegistry.Announce] in all stores. It fails if no store accepts it.
func (s *Stores) AnnounceAPI(ctx context.Context, p placement.APIProcess) ([]placement.SeenAPIProcess, error) {
	lists := make([][]placement.SeenAPIProcess, len(s.all))
	err := unlessAll(s.each(func(i int, store *Store) (err error) {
		lists[i], err = store.APIs.Announce(ctx, p)
		return err
	}))
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b placement.SeenAPIProcess) int {
		return cmp.Or(cmp.Compare(a.Boot, b.Boot), cmp.Compare(a.Age, b.Age))
	})
	return slices.CompactFunc(all, func(a, b placement.SeenAPIProcess) bool { return a.Boot == b.Boot }), err
}

// WithdrawAPI is [APIRegistry.Withdraw] in all stores.
func (s *Stores) WithdrawAPI(ctx context.Context, boot uint64) error {
	return errors.Join(s.each(func(_ int, store *Store) error { return store.APIs.Withdraw(ctx, boot) })...)
}

// Used returns the usage of scope by all holders whose store answers. Error: alloc.ErrStoreUnavailable if
// none does.
func (s *Stores) Used(ctx context.Context, scope string) (sum int64, err error) {
	used := make([]int64, len(s.all))
	err = unlessAll(s.each(func(i int, store *Store) (err error) {
		used[i], err = store.Leases.Used(ctx, scope)
		return err
	}))
	for _, n := range used {
		sum += n
	}
	return sum, err
}

// Take is [Buckets.Take] in the store that a hash of the key names, or in the next one whose breaker is not
// open, where the bucket begins full.
func (s *Stores) Take(ctx context.Context, key string, perMinute int) (ok bool, retryAfter time.Duration, err error) {
	first := int(crc32.ChecksumIEEE([]byte(key)) % uint32(len(s.all)))
	for i := range s.all {
		if store := s.all[(first+i)%len(s.all)]; !store.calls.isOpen() {
			return store.Buckets.Take(ctx, key, perMinute)
		}
	}
	return s.all[first].Buckets.Take(ctx, key, perMinute)
}

// SetBan is [Bans.Set] in all stores. It fails if no store accepts the ban; one that does not answer
// gets it by [Stores.Bans] when it does.
func (s *Stores) SetBan(ctx context.Context, id, text string, until time.Time, most int) error {
	errs := s.each(func(_ int, store *Store) error { return store.Bans.Set(ctx, id, text, until, most) })
	err := unlessAll(errs)
	for i, missed := range errs {
		if err == nil && missed != nil {
			s.all[i].calls.logger.Warn("a ban is not in the store until that answers", "error", missed)
		}
	}
	return err
}

// DeleteBan removes a ban from all stores and reports whether one had it. It fails if a store does not
// answer, which would bring the ban back.
func (s *Stores) DeleteBan(ctx context.Context, id string) (bool, error) {
	if len(s.all) > 1 {
		if err := errors.Join(s.each(func(_ int, store *Store) error { return store.Ping(ctx) })...); err != nil {
			return false, fmt.Errorf("a ban can be removed while all stores answer: %w", err)
		}
	}
	had := make([]bool, len(s.all))
	err := errors.Join(s.each(func(i int, store *Store) (err error) {
		had[i], err = store.Bans.Delete(ctx, id)
		return err
	})...)
	return slices.Contains(had, true), err
}

// Bans returns the bans of all stores that answer, and the highest of their numbers, see [Bans.List]. A
// store that lacks bans of others, since it was away, gets them once it has lacked them for repairAfter.
// Error: alloc.ErrStoreUnavailable if none answers.
func (s *Stores) Bans(ctx context.Context) (union []Ban, number uint64, err error) {
	bans := make([]map[string]Ban, len(s.all))
	numbers := make([]uint64, len(s.all))
	errs := s.each(func(i int, store *Store) error {
		all, n, err := store.Bans.List(ctx)
		numbers[i], bans[i] = n, make(map[string]Ban, len(all))
		for _, b := range all {
			bans[i][b.ID] = b
		}
		return err
	})
	if err := unlessAll(errs); err != nil {
		return nil, 0, err
	}
	byID := make(map[string]Ban)
	for _, part := range bans {
		maps.Copy(byID, part)
	}
	missing := make([][]Ban, len(s.all))
	lacks := false
	for i := range s.all {
		if errs[i] != nil {
			continue
		}
		for id, b := range byID {
			if _, ok := bans[i][id]; !ok {
				missing[i], lacks = append(missing[i], b), true
			}
		}
	}
	if s.isRepairDue(numbers, lacks) {
		for i, store := range s.all {
			if len(missing[i]) == 0 {
				continue
			}
			if done, err := store.Bans.Restore(ctx, missing[i], numbers[i]); done && err == nil {
				store.calls.logger.Info("bans were written to the store, which lacked them", "bans", len(missing[i]))
			}
		}
	}
	return slices.Collect(maps.Values(byID)), slices.Max(numbers), nil
}

// repairAfter is how long a store must lack bans of others before it gets them: a removal from all stores
// takes less.
const repairAfter = 3 * time.Second

// isRepairDue records a reading of all stores, and reports whether stores have lacked bans for
// repairAfter without a change.
func (s *Stores) isRepairDue(numbers []uint64, lacks bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := slices.Equal(numbers, s.numbers)
	s.numbers = numbers
	switch {
	case !lacks:
		s.lacking = time.Time{}
	case !same || s.lacking.IsZero():
		s.lacking = time.Now()
	}
	return lacks && time.Since(s.lacking) > max(repairAfter, 2*s.all[0].calls.timeout)
}

// RestoreBans is [Bans.Restore] in all stores that have not changed since the last [Stores.Bans].
func (s *Stores) RestoreBans(ctx context.Context, all []Ban, number uint64) (bool, error) {
	s.mu.Lock()
	numbers := slices.Clone(s.numbers)
	s.mu.Unlock()
	done := make([]bool, len(s.all))
	err := unlessAll(s.each(func(i int, store *Store) (err error) {
		if len(s.all) == 1 {
			numbers[i] = number
		}
		done[i], err = store.Bans.Restore(ctx, all, numbers[i])
		return err
	}))
	return slices.Contains(done, true), err
}
