package redisstore

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// maxLease bounds the time for which a usage counts. One with a later end is damaged.
const maxLease = time.Minute

// maxUsed bounds the usage of one holder: a script can add up 2,000 of them.
const maxUsed = 1 << 42

type Use struct {
	Scope string
	Used  int64 // 0 ends the lease
}

var luaLease = luaNow + fmt.Sprintf("local maxLease, maxUsed = %d, %d", maxLease.Milliseconds(), int64(maxUsed))

// setLease stores the usage of a holder as "used:end". A new holder removes expired leases.
// KEYS: scope. ARGV: holder, used, milliseconds.
var setLease = newScript(luaLease + `
if ARGV[2] == '0' then return redis.call('HDEL', KEYS[1], ARGV[1]) end
if redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. string.format('%.0f', now + ARGV[3])) == 1 then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local stop = tonumber(string.match(all[i + 1], '^%d+:(%d+)$'))
    if not stop or stop <= now or stop > now + maxLease then redis.call('HDEL', KEYS[1], all[i]) end
  end
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
`)

// sumLeases adds up the usage of all holders but those whose lease has expired. It writes
// nothing. KEYS: scope.
var sumLeases = newScript(luaLease + `
local all = redis.call('HGETALL', KEYS[1])
local sum = 0
for i = 1, #all, 2 do
  local used, stop = string.match(all[i + 1], '^(%d+):(%d+)$')
  stop = tonumber(stop or '0')
  if stop > now and stop <= now + maxLease then sum = sum + math.min(tonumber(used), maxUsed) end
end
return sum
`)

// takeToken takes a token from a bucket with the tokens of a minute. The bucket stores
// the time in microseconds at which it is full again. It returns 0, or the microseconds
// to wait. KEYS: bucket. ARGV: microseconds per token, microseconds for all.
var takeToken = newScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local full = tonumber(redis.call('GET', KEYS[1])) or 0
full = math.min(math.max(full, now), now + ARGV[2]) + ARGV[1]
local wait = full - now - ARGV[2]
if wait > 0 then return math.ceil(wait) end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return 0
`)

type Leases struct {
	calls *client
	keys  keys
}

// Set stores the usages of a holder for ttl, in batches. They replace the previous values, and
// expire after ttl, at most maxLease, if the holder has died. Error: alloc.ErrStoreUnavailable.
func (l *Leases) Set(ctx context.Context, holder string, ttl time.Duration, uses []Use) error {
	for part := range slices.Chunk(uses, batch) {
		all := make([]invocation, len(part))
		for i, u := range part {
			all[i] = invocation{setLease, []string{l.keys.lease(u.Scope)}, []any{holder, u.Used, milliseconds(ttl)}}
		}
		if _, err := l.calls.runAll(ctx, "write leases", all); err != nil {
			return err
		}
	}
	return nil
}

// Used returns the usage of scope by all holders. Error: alloc.ErrStoreUnavailable.
func (l *Leases) Used(ctx context.Context, scope string) (int64, error) {
	reply, err := l.calls.runReadOnly(ctx, "add up leases", sumLeases, []string{l.keys.lease(scope)})
	if err != nil {
		return 0, err
	}
	return l.calls.parseNumber(reply)
}

// Buckets has the token buckets that the API processes of a fleet share.
type Buckets struct {
	calls *client
	keys  keys
}

// Take takes one of perMinute tokens of key; a burst may use all of them. It reports
// true, or false and the time to wait for the next one. A refused call takes no token.
// Error: alloc.ErrStoreUnavailable, after which the caller should count by itself and
// not refuse.
func (b *Buckets) Take(ctx context.Context, key string, perMinute int) (ok bool, retryAfter time.Duration, err error) {
	if perMinute <= 0 {
		return false, time.Minute, nil
	}
	// The call that follows it probes the store if the breaker permits: one of the two
	// waits is enough for the player.
	if b.calls.isOpen() {
		return false, 0, errOpen
	}
	each := max(time.Minute.Microseconds()/int64(perMinute), 1)
	wait, err := b.calls.number(ctx, "count a request", takeToken, []string{b.keys.bucket(key)}, each, each*int64(perMinute))
	if err != nil {
		return false, 0, err
	}
	return wait == 0, time.Duration(wait) * time.Microsecond, nil
}
