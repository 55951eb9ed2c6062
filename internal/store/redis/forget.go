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

// leaving is a host whose code is to be dropped. What is known of it outlives a
// try: a store that had done a step and whose answer was lost would not say again
// what the code was.
type leaving struct {
	host  proto.AllocationID
	asked bool
	code  string // as the host's entry has it, empty if there is none
}

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
func (s *Store) nextForgotten(ctx context.Context) []leaving {
	var hosts []leaving
	select {
	case host := <-s.forget:
		hosts = append(hosts, leaving{host: host})
	case <-ctx.Done():
	}
	return s.waiting(hosts)
}

// waiting fills hosts up to a batch with those that wait.
func (s *Store) waiting(hosts []leaving) []leaving {
	for len(hosts) < batch {
		select {
		case host := <-s.forget:
			hosts = append(hosts, leaving{host: host})
		default:
			return hosts
		}
	}
	return hosts
}

// finish forgets what is left for as long as the store answers, and no longer
// than lastWords.
func (s *Store) finish(ctx context.Context, hosts []leaving) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	for len(hosts) > 0 && s.forgetAll(ctx, hosts) == nil {
		hosts = s.waiting(nil)
	}
}

// forgetAll drops the codes of hosts: first out of their entries, so that
// CodeOf does not put them back, then the codes. After an error it is called
// again with the same hosts.
func (s *Store) forgetAll(ctx context.Context, hosts []leaving) error {
	if err := s.askCodes(ctx, hosts); err != nil {
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
		c, ok := parseHostCode(hosts[i].code)
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

// askCodes finds out which codes hosts have.
func (s *Store) askCodes(ctx context.Context, hosts []leaving) error {
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
