package redisstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// forgetCapacity is that of Forget's queue: 1 MiB, and half a minute of 2,000
// matches per second that end without a store.
const forgetCapacity = 1 << 16

const forgetRetry = 500 * time.Millisecond

const finishTimeout = time.Second

// forgetEntry is a host whose code must be removed. The code is kept over attempts:
// after a lost answer the store would not return it again.
type forgetEntry struct {
	host  proto.AllocationID
	asked bool
	code  string // as the host's entry has it, empty if there is none
}

type forgetQueue struct {
	calls *client
	keys  keys
	hosts chan proto.AllocationID // to run

	forgotten, overflow atomic.Uint64
}

// Forget removes the code of host, if it has one. It does not wait: Run removes the
// code soon. If the queue is full, the host is counted in Stats.Overflow and its code
// expires.
func (q *forgetQueue) Forget(host proto.AllocationID) {
	select {
	case q.hosts <- host:
	default:
		q.overflow.Add(1)
	}
}

func (q *forgetQueue) run(ctx context.Context) {
	for {
		hosts := q.nextForgotten(ctx)
		if len(hosts) == 0 {
			return
		}
		for q.forgetAll(ctx, hosts) != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(jitter(forgetRetry)):
			}
		}
		if ctx.Err() != nil {
			q.finish(ctx, hosts)
			return
		}
	}
}

// nextForgotten waits for queued hosts and returns a batch, or none when ctx is done
// and the queue is empty.
func (q *forgetQueue) nextForgotten(ctx context.Context) []forgetEntry {
	var hosts []forgetEntry
	select {
	case host := <-q.hosts:
		hosts = append(hosts, forgetEntry{host: host})
	case <-ctx.Done():
	}
	return q.fillBatch(hosts)
}

func (q *forgetQueue) fillBatch(hosts []forgetEntry) []forgetEntry {
	for len(hosts) < batch {
		select {
		case host := <-q.hosts:
			hosts = append(hosts, forgetEntry{host: host})
		default:
			return hosts
		}
	}
	return hosts
}

// finish removes the remaining codes while the store answers, for at most
// finishTimeout.
func (q *forgetQueue) finish(ctx context.Context, hosts []forgetEntry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	for len(hosts) > 0 && q.forgetAll(ctx, hosts) == nil {
		hosts = q.fillBatch(nil)
	}
}

// forgetAll removes the codes of hosts: first from their entries, so that CodeOf does
// not restore them, then the codes. After an error it is called again with the same
// hosts.
func (q *forgetQueue) forgetAll(ctx context.Context, hosts []forgetEntry) error {
	if err := q.lookUpCodes(ctx, hosts); err != nil {
		return err
	}
	release := make([]invocation, len(hosts))
	for i := range hosts {
		release[i] = invocation{releaseCode, []string{q.keys.host(hosts[i].host)}, []any{""}}
	}
	if _, err := q.calls.runAll(ctx, "take the join codes from their hosts", release); err != nil {
		return err
	}
	var codes []invocation
	for i := range hosts {
		value, _ := cutSeal(hosts[i].code)
		c, ok := parseHostCode(value)
		switch {
		case ok:
			codes = append(codes, q.keys.dropCode(c, hosts[i].host))
		case hosts[i].code != "":
			q.calls.damaged.Add(1)
		}
	}
	if _, err := q.calls.runAll(ctx, "forget join codes", codes); err != nil {
		return err
	}
	q.forgotten.Add(uint64(len(codes)))
	return nil
}

func (q *forgetQueue) lookUpCodes(ctx context.Context, hosts []forgetEntry) error {
	var numbers []int
	var asks []invocation
	for i := range hosts {
		if !hosts[i].asked {
			numbers = append(numbers, i)
			asks = append(asks, invocation{peekCode, []string{q.keys.host(hosts[i].host)}, nil})
		}
	}
	replies, err := q.calls.runAll(ctx, "look up the join codes of hosts", asks)
	if err != nil {
		return err
	}
	for i, n := range numbers {
		hosts[n].asked = true
		hosts[n].code, _ = replies[i].(string)
	}
	return nil
}
