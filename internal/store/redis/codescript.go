package redisstore

import "github.com/redis/go-redis/v9"

// luaNow is the time of the store in milliseconds.
const luaNow = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
`

// luaCount puts a code that lasts until then on the list of its tenant, and
// takes a few off that have ended: more than it puts, so that the list does not
// grow, and few, so that no call takes long. KEYS[2] is the list, ARGV[2] how
// long the code lasts, ARGV[3] the code. The list lasts as long as its last code.
const luaCount = luaNow + `
local function count()
  local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 16)
  if #old > 0 then redis.call('ZREM', KEYS[2], unpack(old)) end
  redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
`

// putCode leads a code to a host if it leads nowhere: 1, or 0.
// KEYS: code, list. ARGV: host, milliseconds, code.
var putCode = redis.NewScript(luaCount + `
local v = ARGV[1] .. ':' .. string.format('%.0f', now)
if not redis.call('SET', KEYS[1], v, 'NX', 'PX', ARGV[2]) then return 0 end
count()
return 1
`)

// holdCode makes a code last that leads to a host, or leads it there if it
// leads nowhere or to a host that is younger: 1, or 0 if the other is older. Of
// a host that comes again the earliest time counts, for the way takes longer at
// some times than at others. KEYS: code, list. ARGV: host, milliseconds, code,
// age of the host in milliseconds.
var holdCode = redis.NewScript(luaCount + `
local since = math.max(now - ARGV[4], 0)
local v = redis.call('GET', KEYS[1])
if v then
  local host, at = string.match(v, '^([^:]+):(%d+)$')
  at = tonumber(at)
  if host == ARGV[1] then
    since = math.min(since, at)
  elseif host and (at < since or at == since and host < ARGV[1]) then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. string.format('%.0f', since), 'PX', ARGV[2])
count()
return 1
`)

// dropCode drops a code if it leads to the host: 1, or 0.
// KEYS: code, list. ARGV: host, code.
var dropCode = redis.NewScript(`
local v = redis.call('GET', KEYS[1])
if not v or string.match(v, '^([^:]+):') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[2])
return 1
`)

// countCodes returns how many codes of the list have not ended. KEYS: list.
var countCodes = redis.NewScript(luaNow + `
return redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now), '+inf')
`)
