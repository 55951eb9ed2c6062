package redisstore

import "github.com/redis/go-redis/v9"

// The fields of a host's entry: h is its home, c its code.

// setHome says where a host is. KEYS: host. ARGV: home, milliseconds.
var setHome = redis.NewScript(`
redis.call('HSET', KEYS[1], 'h', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
`)

// claimCode gives a host a code if it has none: 1, or 0.
// KEYS: host. ARGV: code, milliseconds.
var claimCode = redis.NewScript(`
if redis.call('HSETNX', KEYS[1], 'c', ARGV[1]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
`)

// peekCode returns the code of a host, or nothing. KEYS: host.
var peekCode = redis.NewScript(`return redis.call('HGET', KEYS[1], 'c')`)

// releaseCode takes a code from a host that has this one, or, if ARGV[1] is
// empty, whichever it has. It returns the code that was taken, or nothing.
// KEYS: host. ARGV: code or empty.
var releaseCode = redis.NewScript(`
local c = redis.call('HGET', KEYS[1], 'c')
if not c or ARGV[1] ~= '' and c ~= ARGV[1] then return false end
redis.call('HDEL', KEYS[1], 'c')
return c
`)

// holdHost says where a host is, and what became of the code that its relay
// holds for it: '1' it leads to the host, '0' it leads to another one, ” there
// is none. It returns another code that the entry had, or nothing. One that the
// relay holds takes its place, otherwise it stays.
// KEYS: host. ARGV: home, milliseconds, code or empty, what became of it.
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

// dropHost drops a host if it is at that home or nowhere. It returns 0 if it is
// elsewhere, and else 1 with the code that the host had, if any.
// KEYS: host. ARGV: home.
var dropHost = redis.NewScript(`
local e = redis.call('HMGET', KEYS[1], 'h', 'c')
if e[1] and e[1] ~= ARGV[1] then return {0} end
redis.call('DEL', KEYS[1])
return {1, e[2] or ''}
`)
