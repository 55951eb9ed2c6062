package redisstore

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// forgetQueue is how many hosts may wait for their code to be dropped: a
// mebibyte, and half a minute of 2,000 matches a second that all end without a
// store.
const forgetQueue = 1 << 16

// forgetRetry is the time between two tries to drop codes.
const forgetRetry = 500 * time.Millisecond

// lastWords bounds what Run still does once its context has ended.
const lastWords = time.Second

// Run drops the codes of hosts that Forget named, until ctx ends. What waits
// then is dropped if the store answers at once; else it ends by itself. Run
// returns nil, and starts no goroutine that outlives it.
func (s *Store) Run(ctx context.Context) error {
	for {
		hosts := s.nextForgotten(ctx)
		if len(hosts) == 0 {
			return nil
		}
		for s.forgetAll(ctx, hosts) != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(jitter(forgetRetry)):
			}
		}
		if ctx.Err() != nil {
			s.finish(ctx, hosts)
			return nil
		}
	}
}

// nextForgotten waits for hosts to forget and returns at most a batch of them,
// or none when ctx has ended and none is waiting.
func (s *Store) nextForgotten(ctx context.Context) []proto.AllocationID {
	var hosts []proto.AllocationID
	select {
	case host := <-s.forget:
		hosts = append(hosts, host)
	case <-ctx.Done():
	}
	return s.waiting(hosts)
}

// waiting fills hosts up to a batch with those that wait.
func (s *Store) waiting(hosts []proto.AllocationID) []proto.AllocationID {
	for len(hosts) < batch {
		select {
		case host := <-s.forget:
			hosts = append(hosts, host)
		default:
			return hosts
		}
	}
	return hosts
}

// finish forgets what is left for as long as the store answers, and no longer
// than lastWords.
func (s *Store) finish(ctx context.Context, hosts []proto.AllocationID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	for len(hosts) > 0 && s.forgetAll(ctx, hosts) == nil {
		hosts = s.waiting(nil)
	}
}

// forgetAll drops the codes of hosts: first out of their entries, so that
// CodeOf does not put them back, then the codes.
func (s *Store) forgetAll(ctx context.Context, hosts []proto.AllocationID) error {
	release := make([]invocation, len(hosts))
	for i, host := range hosts {
		release[i] = invocation{releaseCode, []string{s.keys.host(host)}, []any{""}}
	}
	replies, err := s.runAll(ctx, "forget the join codes of hosts", release)
	if err != nil {
		return err
	}
	var codes []invocation
	for i, host := range hosts {
		text, ok := replies[i].(string)
		if !ok {
			continue
		}
		if c, ok := parseHostCode(text); ok {
			codes = append(codes, s.dropCode(c, host))
		} else {
			s.damaged.Add(1)
		}
	}
	if _, err := s.runAll(ctx, "forget join codes", codes); err != nil {
		return err
	}
	s.forgotten.Add(uint64(len(codes)))
	return nil
}
