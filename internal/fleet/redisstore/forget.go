package redisstore

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// forgetQueue is the capacity of Forget's queue: 1 MiB, and half a minute of 2,000
// matches per second that end without a store.
const forgetQueue = 1 << 16

// forgetRetry is the time between two attempts to remove codes.
const forgetRetry = 500 * time.Millisecond

// finishTimeout bounds the work of Run after its context is done.
const finishTimeout = time.Second

// forgetEntry is a host whose code must be removed. The code is kept over attempts:
// after a lost answer the store would not return it again.
type forgetEntry struct {
	host  proto.AllocationID
	asked bool
	code  string // as the host's entry has it, empty if there is none
}

// Run removes the codes of hosts that Forget queued, until ctx is done. It then removes
// the rest while the store answers; other codes expire. Run returns nil, and leaves no
// goroutine.
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

// nextForgotten waits for queued hosts and returns a batch, or none when ctx is done
// and the queue is empty.
func (s *Store) nextForgotten(ctx context.Context) []forgetEntry {
	var hosts []forgetEntry
	select {
	case host := <-s.forget:
		hosts = append(hosts, forgetEntry{host: host})
	case <-ctx.Done():
	}
	return s.fillBatch(hosts)
}

// fillBatch adds queued hosts up to a full batch.
func (s *Store) fillBatch(hosts []forgetEntry) []forgetEntry {
	for len(hosts) < batch {
		select {
		case host := <-s.forget:
			hosts = append(hosts, forgetEntry{host: host})
		default:
			return hosts
		}
	}
	return hosts
}

// finish removes the remaining codes while the store answers, for at most
// finishTimeout.
func (s *Store) finish(ctx context.Context, hosts []forgetEntry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	for len(hosts) > 0 && s.forgetAll(ctx, hosts) == nil {
		hosts = s.fillBatch(nil)
	}
}

// forgetAll removes the codes of hosts: first from their entries, so that CodeOf does
// not restore them, then the codes. After an error it is called again with the same
// hosts.
func (s *Store) forgetAll(ctx context.Context, hosts []forgetEntry) error {
	if err := s.lookUpCodes(ctx, hosts); err != nil {
		return err
	}
	release := make([]invocation, len(hosts))
	for i := range hosts {
		release[i] = invocation{releaseCode, []string{s.keys.host(hosts[i].host)}, []any{""}}
	}
	if _, err := s.runAll(ctx, "take the join codes from their hosts", release); err != nil {
		return err
	}
	var codes []invocation
	for i := range hosts {
		value, _ := cutSeal(hosts[i].code)
		c, ok := parseHostCode(value)
		switch {
		case ok:
			codes = append(codes, s.dropCode(c, hosts[i].host))
		case hosts[i].code != "":
			s.damaged.Add(1)
		}
	}
	if _, err := s.runAll(ctx, "forget join codes", codes); err != nil {
		return err
	}
	s.forgotten.Add(uint64(len(codes)))
	return nil
}

// lookUpCodes reads the codes of hosts.
func (s *Store) lookUpCodes(ctx context.Context, hosts []forgetEntry) error {
	var numbers []int
	var asks []invocation
	for i := range hosts {
		if !hosts[i].asked {
			numbers = append(numbers, i)
			asks = append(asks, invocation{peekCode, []string{s.keys.host(hosts[i].host)}, nil})
		}
	}
	replies, err := s.runAll(ctx, "look up the join codes of hosts", asks)
	if err != nil {
		return err
	}
	for i, n := range numbers {
		hosts[n].asked = true
		hosts[n].code, _ = replies[i].(string)
	}
	return nil
}
