package redisstore

import "github.com/redis/go-redis/v9"

// announce writes the entry of a relay, "at:boot:number:json", unless a later
// one of the same run is there already. It returns 1 if the entry before was of
// that run, and had the number that the relay last knew to be written or a later
// one, and 0 otherwise. A few entries that have ended are taken off.
// KEYS: entries, their ends. ARGV: relay, boot, number, last number known to be
// written, milliseconds that the entry lasts, JSON.
var announce = redis.NewScript(luaNow + `
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 16)
if #old > 0 then
  redis.call('HDEL', KEYS[1], unpack(old))
  redis.call('ZREM', KEYS[2], unpack(old))
end
local intact = 0
local v = redis.call('HGET', KEYS[1], ARGV[1])
if v then
  local boot, number = string.match(v, '^%d+:(%x+):(%d+):')
  if boot == ARGV[2] then
    if tonumber(number) >= tonumber(ARGV[4]) then intact = 1 end
    if tonumber(number) > tonumber(ARGV[3]) then return intact end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ':' .. ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[6])
redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[1])
for i = 1, 2 do
  if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[5]) then redis.call('PEXPIRE', KEYS[i], ARGV[5]) end
end
return intact
`)

// listNodes returns the time of the store, and all entries. KEYS: entries.
var listNodes = redis.NewScript(luaNow + `
return {string.format('%.0f', now), redis.call('HGETALL', KEYS[1])}
`)

// withdraw takes off the entry of a relay if it is of that run: 1, or 0.
// KEYS: entries, their ends. ARGV: relay, boot.
var withdraw = redis.NewScript(`
local v = redis.call('HGET', KEYS[1], ARGV[1])
if not v or string.match(v, '^%d+:(%x+):') ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
`)
