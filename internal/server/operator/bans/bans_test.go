package bans

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// stuckStore accepts a ban when free is closed.
type stuckStore struct {
	Store
	asked, free chan struct{}
}

func (s *stuckStore) Bans(context.Context) ([]redisstore.Ban, uint64, error) { return nil, 1, nil }

func (s *stuckStore) SetBan(context.Context, string, string, time.Time, int) error {
	close(s.asked)
	<-s.free
	return nil
}

// TestBanStoreSlow: while a ban waits for the store, the bans can be read, the relay applies them, and another
// change ends with its own time-out.
func TestBanStoreSlow(t *testing.T) {
	t.Parallel()
	store := &stuckStore{asked: make(chan struct{}), free: make(chan struct{})}
	k, err := New(Config{Store: store, Writes: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b := operator.Ban{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Since: time.Now(), Until: time.Now().Add(time.Hour)}
	added := make(chan error)
	go func() { _, err := k.Add(context.Background(), b); added <- err }()
	<-store.asked
	var done atomic.Int32
	go func() {
		k.List()
		k.apply(t.Context())
		done.Add(1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := k.Remove(ctx, "0"); !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("Remove: %v", err)
		}
		done.Add(1)
	}()
	testkit.Eventually(t, "nothing else waits for the store", func() bool { return done.Load() == 2 })
	close(store.free)
	if err := <-added; err != nil {
		t.Error(err)
	}
}

// bannedMatches is a relay with two matches of a banned player, who also plays in another one.
type bannedMatches struct{}

func (bannedMatches) SetBannedSources([]netip.Prefix) {}

func (bannedMatches) Allocations(context.Context, engine.Filter, uint32, int) ([]engine.Allocation, uint32, error) {
	return []engine.Allocation{
		{ID: proto.AllocationID{1}, Role: alloc.RoleHost}, {ID: proto.AllocationID{2}, Role: alloc.RoleHost},
		{ID: proto.AllocationID{3}, Role: alloc.RoleJoiner}, {ID: proto.AllocationID{4}, Role: alloc.RoleJoiner},
	}, 0, nil
}

func (bannedMatches) Kick(_ context.Context, id proto.AllocationID) error {
	switch id[0] {
	case 1, 2:
		return engine.ErrKickHost
	case 4:
		return alloc.ErrNotFound // It has just left.
	}
	return nil
}

func (bannedMatches) End(context.Context, proto.AllocationID) error { return nil }

// TestBanLog: a ban writes one line about all allocations that it ends.
func TestBanLog(t *testing.T) {
	t.Parallel()
	var log testkit.LogBuffer
	k, err := New(Config{Relay: bannedMatches{}, Writes: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := operator.Ban{Player: "ann", Project: "game", Environment: "live", Since: time.Now()}
	b.Until = b.Since.Add(time.Hour)
	if _, err := k.Add(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `subject="player ann of game/live" allocations=3`) {
		t.Errorf("the log:\n%s", got)
	}
}
