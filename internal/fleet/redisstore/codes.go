package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

type codeStore struct {
	calls *client
	keys  keys
	seals *sealer
	ttl   time.Duration
}

// PutCode stores a code for host. It reports false, and changes nothing, if the tenant
// has that code or the host has one. Errors: alloc.ErrStoreUnavailable, after which the
// code may lead to host for up to HostTTL, and alloc.ErrCodeMalformed.
func (s *codeStore) PutCode(ctx context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	c, ok := canonical(t.Hash(), code)
	if !ok {
		return false, alloc.ErrCodeMalformed
	}
	seals, err := s.seals.seal(ctx, s.ttl, s.keys.codeStatement(c, host))
	if err != nil {
		return false, err
	}
	stored, err := s.calls.run(ctx, "put a join code", putCode,
		[]string{s.keys.code(c.tenant, c.code), s.keys.codes(c.tenant)},
		host.String(), milliseconds(s.ttl), c.code, seals[0])
	if err != nil || stored != int64(1) {
		return false, err
	}
	claimed, err := s.calls.run(ctx, "put a join code at its host", claimCode,
		[]string{s.keys.host(host)}, c.String()+":"+seals[0], milliseconds(s.ttl))
	if err != nil {
		return false, err
	}
	if claimed == int64(1) {
		return true, nil
	}
	drop := s.keys.dropCode(c, host)
	_, err = s.calls.run(ctx, "take back a join code", drop.script, drop.keys, drop.args...)
	return false, err
}

// MoveCode is that of placement.Directory. After alloc.ErrStoreUnavailable the code may lead to
// to, also later. The entry of the code decides. That of to gets the code before: after a failure
// in between it has a code that leads elsewhere, which CodeOf, Renew and Drop handle.
func (s *codeStore) MoveCode(ctx context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	c, ok := canonical(tenant, code)
	if !ok {
		return false, alloc.ErrCodeMalformed
	}
	// codeOfHost also removes a code that is not that of to.
	if has, err := s.codeOfHost(ctx, tenant, to); !errors.Is(err, alloc.ErrCodeNotFound) {
		return err == nil && has == c.code, err
	}
	seals, err := s.seals.seal(ctx, s.ttl, s.keys.codeStatement(c, to))
	if err != nil {
		return false, err
	}
	claimed, err := s.calls.run(ctx, "put a moving join code at its new host", claimCode,
		[]string{s.keys.host(to)}, c.String()+":"+seals[0], milliseconds(s.ttl))
	if err != nil || claimed != int64(1) {
		return false, err
	}
	moved, err := s.moveCode(ctx, c, from, to, seals[0])
	if err != nil || moved && from == to {
		return moved, err
	}
	former := from
	if !moved {
		former = to
	}
	if err := s.releaseCode(ctx, c.String(), former); !moved && !errors.Is(err, alloc.ErrCodeNotFound) {
		return false, err
	}
	return moved, nil // The next Renew or CodeOf of from releases it otherwise.
}

// moveCode changes the entry of a code. An entry of a third host without a valid signature
// counts as absent.
func (s *codeStore) moveCode(ctx context.Context, c hostCode, from, to proto.AllocationID, sealed string) (bool, error) {
	forged := ""
	for range 2 {
		reply, err := s.calls.run(ctx, "move a join code", moveCode,
			[]string{s.keys.code(c.tenant, c.code), s.keys.codes(c.tenant)},
			to.String(), milliseconds(s.ttl), c.code, sealed, from.String(), forged)
		if err != nil {
			return false, err
		}
		other, taken := reply.(string)
		if !taken {
			return true, nil
		}
		claimed, _ := s.keys.codeClaim(c, other)
		if genuine, err := s.seals.isGenuine(ctx, claimed); err != nil || genuine {
			return false, err
		}
		forged = other
	}
	return false, nil // Another call has replaced the forged entry.
}

// HostOf returns the host of a code. A code without a valid signature is not found.
// Errors: alloc.ErrCodeNotFound, alloc.ErrStoreUnavailable.
func (s *codeStore) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	c, ok := canonical(t.Hash(), code)
	if !ok {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	return s.hostOf(ctx, c)
}

func (s *codeStore) hostOf(ctx context.Context, c hostCode) (proto.AllocationID, error) {
	text, err := s.calls.text(ctx, "look up a join code", func(ctx context.Context) (string, error) {
		return s.calls.redis.get(ctx, s.keys.code(c.tenant, c.code))
	})
	if err != nil {
		return proto.AllocationID{}, err
	}
	if text == "" {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	claimed, ok := s.keys.codeClaim(c, text)
	if !ok {
		return proto.AllocationID{}, s.calls.reportDamaged()
	}
	genuine, err := s.seals.isGenuine(ctx, claimed)
	if err != nil {
		return proto.AllocationID{}, err
	}
	if !genuine {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	host, _, _ := parseCodeValue(text)
	return host, nil
}

func (k keys) codeClaim(c hostCode, text string) (claim, bool) {
	host, sealed, ok := parseCodeValue(text)
	return k.codeClaimOf(c, host, sealed), ok
}

func (k keys) codeClaimOf(c hostCode, host proto.AllocationID, sealed string) claim {
	return claim{statement: k.codeStatement(c, host), anyRelay: true, api: true, text: sealed}
}

// CodeOf returns the code of a host. Errors: alloc.ErrCodeNotFound if it has none or
// belongs to another tenant, alloc.ErrStoreUnavailable. A code in the host's entry that
// leads nowhere was lost and is restored, if its seal there is valid; a code that leads to
// another host was lost to that host and is removed from the entry.
func (s *codeStore) CodeOf(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	return s.codeOfHost(ctx, t.Hash(), host)
}

func (s *codeStore) codeOfHost(ctx context.Context, tenant uint64, host proto.AllocationID) (string, error) {
	text, err := s.codeOf(ctx, host)
	if err != nil {
		return "", err
	}
	if text == "" {
		return "", alloc.ErrCodeNotFound
	}
	value, sealed := cutSeal(text)
	c, ok := parseHostCode(value)
	if !ok {
		s.calls.damaged.Add(1)
		return "", s.releaseCode(ctx, value, host)
	}
	if c.tenant != tenant {
		return "", alloc.ErrCodeNotFound
	}
	leadsTo, err := s.hostOf(ctx, c)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		return s.restoreCode(ctx, c, host, sealed)
	}
	if err != nil {
		return "", err
	}
	if leadsTo == host {
		return c.code, nil
	}
	return "", s.releaseCode(ctx, c.String(), host)
}

// restoreCode restores a code that leads nowhere, by the seal that the host's entry has,
// and then checks that the host still has it: if it was forgotten meanwhile, no other
// call would remove it.
func (s *codeStore) restoreCode(ctx context.Context, c hostCode, host proto.AllocationID, sealed string) (string, error) {
	genuine, err := s.seals.isGenuine(ctx, s.keys.codeClaimOf(c, host, sealed))
	if err != nil {
		return "", err
	}
	if !genuine {
		return "", s.releaseCode(ctx, c.String(), host)
	}
	stored, err := s.calls.run(ctx, "put a join code back", putCode,
		[]string{s.keys.code(c.tenant, c.code), s.keys.codes(c.tenant)},
		host.String(), milliseconds(s.ttl), c.code, sealed)
	if err != nil {
		return "", err
	}
	if stored != int64(1) {
		leadsTo, err := s.hostOf(ctx, c)
		if err != nil {
			return "", err
		}
		if leadsTo == host {
			return c.code, nil // another process has just restored it
		}
		return "", s.releaseCode(ctx, c.String(), host)
	}
	text, err := s.codeOf(ctx, host)
	if err != nil {
		return "", err
	}
	if value, _ := cutSeal(text); value == c.String() {
		return c.code, nil
	}
	drop := s.keys.dropCode(c, host)
	if _, err := s.calls.run(ctx, "take back a join code", drop.script, drop.keys, drop.args...); err != nil {
		return "", err
	}
	return "", alloc.ErrCodeNotFound
}

func (s *codeStore) codeOf(ctx context.Context, host proto.AllocationID) (string, error) {
	return s.calls.text(ctx, "look up a host's join code", func(ctx context.Context) (string, error) {
		return s.calls.redis.hget(ctx, s.keys.host(host), "c")
	})
}

func (s *codeStore) releaseCode(ctx context.Context, code string, host proto.AllocationID) error {
	if _, err := s.calls.run(ctx, "take a lost join code from its host", releaseCode,
		[]string{s.keys.host(host)}, code); err != nil {
		return err
	}
	return alloc.ErrCodeNotFound
}

func (s *codeStore) Codes(ctx context.Context, t alloc.Tenant, _ proto.AllocationID) (string, int, error) {
	n, err := s.calls.number(ctx, "count join codes", countCodes, []string{s.keys.codes(t.Hash())}, milliseconds(s.ttl))
	return "", int(n), err
}

func (k keys) dropCode(c hostCode, host proto.AllocationID) invocation {
	return invocation{
		script: dropCode,
		keys:   []string{k.code(c.tenant, c.code), k.codes(c.tenant)},
		args:   []any{host.String(), c.code},
	}
}

func canonical(tenant uint64, code string) (hostCode, bool) {
	packed, ok := joincode.Pack(code)
	return hostCode{tenant, joincode.Unpack(packed)}, ok
}

// luaNow sets now to the time of the store in milliseconds.
const luaNow = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
`

// luaCount adds a code to the list of its tenant, and removes up to 16 expired ones:
// more than it adds, so that the list stays small, and few, so that no call is slow.
// KEYS[2] is the list, ARGV[2] the lifetime of the code, ARGV[3] the code. The list
// lives as long as its last code.
const luaCount = luaNow + `
local function count()
  local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 16)
  if #old > 0 then redis.call('ZREM', KEYS[2], unpack(old)) end
  redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
`

// putCode stores a code for a host unless the code exists, and returns 1, else 0. KEYS:
// code, list. ARGV: host, milliseconds, code, seal.
var putCode = newScript(luaCount + `
local v = ARGV[1] .. ':' .. string.format('%.0f', now) .. ':' .. ARGV[4]
if not redis.call('SET', KEYS[1], v, 'NX', 'PX', ARGV[2]) then return 0 end
count()
return 1
`)

// renewCode renews a code of a host, or assigns it to the host if it leads nowhere or to
// a younger host. It returns 1, or the entry of the other host if that is older. For a
// repeated host the earliest time counts, since network delays vary. An entry that equals
// ARGV[6] is replaced: the caller has found its signature invalid. KEYS: code, list.
// ARGV: host, milliseconds, code, age of the host in milliseconds, seal, entry or empty.
var renewCode = newScript(luaCount + `
local since = math.max(now - ARGV[4], 0)
local v = redis.call('GET', KEYS[1])
if v and v ~= ARGV[6] then
  local host, at = string.match(v, '^([^:]+):(%d+)')
  at = tonumber(at)
  if host == ARGV[1] then
    since = math.min(since, at)
  elseif host and (at < since or at == since and host < ARGV[1]) then
    return v
  end
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. string.format('%.0f', since) .. ':' .. ARGV[5], 'PX', ARGV[2])
count()
return 1
`)

// moveCode assigns a code of a host, or one that leads nowhere, to another host. It returns
// 1, or the entry of a third host. An entry that equals ARGV[6] is replaced, see renewCode.
// The new entry is the oldest possible: a Renew of the former host, which may arrive late,
// does not take the code back. KEYS: code, list. ARGV: new host, milliseconds, code, seal,
// former host, entry or empty.
var moveCode = newScript(luaCount + `
local v = redis.call('GET', KEYS[1])
if v and v ~= ARGV[6] and string.match(v, '^([^:]+):') ~= ARGV[5] then return v end
redis.call('SET', KEYS[1], ARGV[1] .. ':0:' .. ARGV[4], 'PX', ARGV[2])
count()
return 1
`)

// dropCode removes a code if it leads to the host, and returns 1, else 0. KEYS: code,
// list. ARGV: host, code.
var dropCode = newScript(`
local v = redis.call('GET', KEYS[1])
if not v or string.match(v, '^([^:]+):') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[2])
return 1
`)

// countCodes returns the number of codes in the list that have not expired, without those that would last for longer
// than a code does. KEYS: list. ARGV: lifetime of a code.
var countCodes = newScript(luaNow + `
return redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now), string.format('%.0f', now + ARGV[1]))
`)
