package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

// SetHome remembers for HoldFor where a new host is. Error:
// alloc.ErrStoreUnavailable.
func (s *Store) SetHome(ctx context.Context, host proto.AllocationID, home fleet.Home) error {
	_, err := s.run(ctx, "set a host's home", setHome,
		[]string{s.keys.host(host)}, homeText(home), milliseconds(s.holdFor))
	return err
}

// HomeOf returns where a host is, or alloc.ErrNotFound, or
// alloc.ErrStoreUnavailable.
func (s *Store) HomeOf(ctx context.Context, host proto.AllocationID) (fleet.Home, error) {
	text, err := s.text(ctx, "look up a host's home", func(ctx context.Context) *redis.StringCmd {
		return s.client.HGet(ctx, s.keys.host(host), "h")
	})
	if err != nil {
		return fleet.Home{}, err
	}
	if text == "" {
		return fleet.Home{}, alloc.ErrNotFound
	}
	home, ok := parseHome(text)
	if !ok {
		s.damaged.Add(1)
		return fleet.Home{}, errDamaged
	}
	return home, nil
}
