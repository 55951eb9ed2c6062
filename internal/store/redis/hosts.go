package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet"
	"github.com/ferryrelay/ferry/proto"
)

// batch bounds the hosts in one pipeline: about 50 kB in each direction, and a few
// milliseconds of processor time, so that a timeout of a batch means that the store is
// slow.
const batch = 128

// maxAge bounds the accepted age of a host, against clocks that are far off.
const maxAge = 10 * 365 * 24 * time.Hour

// Hold renews hosts and codes for another HoldFor, and restores those that the store
// has lost. A code of two hosts goes to the older one, by the time since Held.Since on
// this process's clock. The relay's code of a host replaces another one in the store;
// if the relay has none, the one in the store is renewed. A malformed code counts as
// none. Hold returns the hosts that lost their code, and alloc.ErrStoreUnavailable if
// it could not finish; it may be repeated.
func (s *Store) Hold(ctx context.Context, home fleet.Home, held []fleet.Held) ([]proto.AllocationID, error) {
	var lost []proto.AllocationID
	for part := range slices.Chunk(held, batch) {
		some, err := s.hold(ctx, home, part)
		lost = append(lost, some...)
		if err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// hold holds one batch: first the codes, so that the code of a host always leads to it,
// then the hosts, and then the codes found in their entries.
func (s *Store) hold(ctx context.Context, home fleet.Home, held []fleet.Held) (lost []proto.AllocationID, err error) {
	now := time.Now()
	var coded []fleet.Held
	var codes []invocation
	for _, h := range held {
		if c, ok := canonical(h.Tenant, h.Code); ok {
			coded = append(coded, h)
			codes = append(codes, s.holdCode(c, h, now))
		}
	}
	replies, err := s.runAll(ctx, "hold join codes", codes)
	if err != nil {
		return nil, err
	}
	kept := make(map[proto.AllocationID]bool, len(coded))
	for i, h := range coded {
		if kept[h.Host] = replies[i] == int64(1); !kept[h.Host] {
			lost = append(lost, h.Host)
		}
	}
	hosts := make([]invocation, len(held))
	for i, h := range held {
		hosts[i] = s.holdHost(home, h, kept)
	}
	if replies, err = s.runAll(ctx, "hold hosts", hosts); err != nil {
		return lost, err
	}
	more, err := s.settle(ctx, held, replies, kept, now)
	return append(lost, more...), err
}

func (s *Store) holdCode(c hostCode, h fleet.Held, now time.Time) invocation {
	age := min(max(now.Sub(h.Since), 0), maxAge)
	return invocation{
		script: holdCode,
		keys:   []string{s.keys.code(c.tenant, c.code), s.keys.codes(c.tenant)},
		args:   []any{h.Host.String(), milliseconds(s.holdFor), c.code, age.Milliseconds()},
	}
}

func (s *Store) holdHost(home fleet.Home, h fleet.Held, kept map[proto.AllocationID]bool) invocation {
	code, became := "", ""
	if c, ok := canonical(h.Tenant, h.Code); ok {
		code, became = c.String(), "0"
		if kept[h.Host] {
			became = "1"
		}
	}
	return invocation{
		script: holdHost,
		keys:   []string{s.keys.host(h.Host)},
		args:   []any{homeText(home), milliseconds(s.holdFor), code, became},
	}
}

// settle handles the codes in the entries of hosts that differ from those of the relay:
// it drops replaced codes, and renews a code that the relay does not know or that is
// the host's only one. It returns the hosts that have lost their code.
func (s *Store) settle(ctx context.Context, held []fleet.Held, found []any, kept map[proto.AllocationID]bool, now time.Time) ([]proto.AllocationID, error) {
	var others []hostCode
	var hosts []fleet.Held
	var act []invocation
	for i, h := range held {
		text, ok := found[i].(string)
		if !ok {
			continue
		}
		c, ok := parseHostCode(text)
		if !ok {
			s.damaged.Add(1)
			continue
		}
		others, hosts = append(others, c), append(hosts, h)
		if kept[h.Host] {
			act = append(act, s.dropCode(c, h.Host))
		} else {
			act = append(act, s.holdCode(c, h, now))
		}
	}
	replies, err := s.runAll(ctx, "settle join codes", act)
	if err != nil {
		return nil, err
	}
	var lost []proto.AllocationID
	var release []invocation
	for i, h := range hosts {
		if !kept[h.Host] && replies[i] != int64(1) {
			lost = append(lost, h.Host)
			release = append(release, invocation{releaseCode, []string{s.keys.host(h.Host)}, []any{others[i].String()}})
		}
	}
	_, err = s.runAll(ctx, "take lost join codes from their hosts", release)
	return lost, err
}

// Drop removes hosts that have ended, and their codes, if home is still their home.
// After alloc.ErrStoreUnavailable it may be repeated; otherwise the rest expires.
func (s *Store) Drop(ctx context.Context, home fleet.Home, held []fleet.Held) error {
	for part := range slices.Chunk(held, batch) {
		if err := s.drop(ctx, home, part); err != nil {
			return err
		}
	}
	return nil
}

// drop drops one batch: first the hosts that are still at home, then the codes that led
// to them.
func (s *Store) drop(ctx context.Context, home fleet.Home, held []fleet.Held) error {
	hosts := make([]invocation, len(held))
	for i, h := range held {
		hosts[i] = invocation{dropHost, []string{s.keys.host(h.Host)}, []any{homeText(home)}}
	}
	replies, err := s.runAll(ctx, "drop hosts", hosts)
	if err != nil {
		return err
	}
	var codes []invocation
	for i, h := range held {
		reply, ok := replies[i].([]any)
		if !ok || len(reply) < 2 || reply[0] != int64(1) {
			continue // It has another home by now.
		}
		known, _ := canonical(h.Tenant, h.Code)
		if known.code != "" {
			codes = append(codes, s.dropCode(known, h.Host))
		}
		if text, _ := reply[1].(string); text != "" && text != known.String() {
			if c, ok := parseHostCode(text); ok {
				codes = append(codes, s.dropCode(c, h.Host))
			} else {
				s.damaged.Add(1)
			}
		}
	}
	_, err = s.runAll(ctx, "drop join codes", codes)
	return err
}

// Forget removes the code of host, if it has one. It does not wait: Run removes the
// code soon. If the queue is full, the host is counted in Stats.Overflow and its code
// expires.
func (s *Store) Forget(host proto.AllocationID) {
	select {
	case s.forget <- host:
	default:
		s.overflow.Add(1)
	}
}

// SetHome stores the home of a new host for HoldFor. Error: alloc.ErrStoreUnavailable.
func (s *Store) SetHome(ctx context.Context, host proto.AllocationID, home fleet.Home) error {
	_, err := s.run(ctx, "set a host's home", setHome,
		[]string{s.keys.host(host)}, homeText(home), milliseconds(s.holdFor))
	return err
}

// HomeOf returns the home of a host. Errors: alloc.ErrNotFound,
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

// The fields of a host's entry: h is its home, c its code.

// setHome stores the home of a host. KEYS: host. ARGV: home, milliseconds.
var setHome = redis.NewScript(`
redis.call('HSET', KEYS[1], 'h', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
`)

// claimCode gives a host a code if it has none, and returns 1, else 0. KEYS: host.
// ARGV: code, milliseconds.
var claimCode = redis.NewScript(`
if redis.call('HSETNX', KEYS[1], 'c', ARGV[1]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
`)

// peekCode returns the code of a host, or nothing. KEYS: host.
var peekCode = redis.NewScript(`return redis.call('HGET', KEYS[1], 'c')`)

// releaseCode removes this code from a host, or any code if ARGV[1] is empty. It
// returns the removed code, or nothing. KEYS: host. ARGV: code or empty.
var releaseCode = redis.NewScript(`
local c = redis.call('HGET', KEYS[1], 'c')
if not c or ARGV[1] ~= '' and c ~= ARGV[1] then return false end
redis.call('HDEL', KEYS[1], 'c')
return c
`)

// holdHost stores the home of a host, and the state of the relay's code: '1' the code
// leads to the host, '0' it leads to another one, ” the relay has none. It returns a
// different code that the entry had, or nothing. The relay's code replaces that one.
// KEYS: host. ARGV: home, milliseconds, code or empty, state.
var holdHost = redis.NewScript(`
redis.call('HSET', KEYS[1], 'h', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local c = redis.call('HGET', KEYS[1], 'c')
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'c', ARGV[3])
elseif ARGV[4] == '0' and c == ARGV[3] then
  redis.call('HDEL', KEYS[1], 'c')
end
if not c or c == ARGV[3] then return false end
return c
`)

// dropHost removes a host unless it has another home. It returns 0 if it has, else 1
// with the code of the host, if any. KEYS: host. ARGV: home.
var dropHost = redis.NewScript(`
local e = redis.call('HMGET', KEYS[1], 'h', 'c')
if e[1] and e[1] ~= ARGV[1] then return {0} end
redis.call('DEL', KEYS[1])
return {1, e[2] or ''}
`)
