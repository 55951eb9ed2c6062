package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

// maxBan bounds the text of a ban in bytes.
const maxBan = 4096

var ErrBansFull = errors.New("redisstore: the store has as many bans as there may be")

// setBan stores a ban as "end:text", removes those that have ended, and numbers the change. It
// returns 0 if there are too many, else 1. KEYS: bans. ARGV: id, end in milliseconds, text, maximum.
var setBan = newScript(luaNow + luaNumberChange + `
local all = redis.call('HGETALL', KEYS[1])
local n = 0
for i = 1, #all, 2 do
  local stop = tonumber(string.match(all[i + 1], '^(%d+):'))
  if not stop or stop <= now then redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] and all[i] ~= '` + keptField + `' then n = n + 1 end
end
if n >= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. ARGV[3])
numberChange()
return 1
`)

// keptField is an entry that stays when all bans are removed. It has the number of the last change
// behind keptValue, which older versions read as an end in the year 5138.
const (
	keptField = "kept"
	keptValue = "99999999999999:"
)

// luaNumberChange defines a function that numbers a change of the bans: by the time of the store in
// milliseconds, so that a store that goes on from an older copy uses no number again.
const luaNumberChange = `
local function numberChange()
  local kept = redis.call('HGET', KEYS[1], '` + keptField + `') or ''
  local last = tonumber(string.match(kept, ':(%d+)$') or '0')
  redis.call('HSET', KEYS[1], '` + keptField + `', '` + keptValue + `' .. string.format('%.0f', math.max(now, last + 1)))
end
`

// deleteBan removes a ban, numbers the change and returns how many there were. KEYS: bans. ARGV: id.
var deleteBan = newScript(luaNow + luaNumberChange + `
local n = redis.call('HDEL', KEYS[1], ARGV[1])
if n > 0 then numberChange() end
return n
`)

// restoreBans stores bans if none was changed since they were read, numbers the change, and returns 1,
// else 0. KEYS: bans. ARGV: the number that was read, then id, end in milliseconds and text of each.
var restoreBans = newScript(luaNow + luaNumberChange + `
local kept = redis.call('HGET', KEYS[1], '` + keptField + `')
local last = kept and tonumber(string.match(kept, ':(%d+)$') or '1') or 0
if last ~= tonumber(ARGV[1]) then return 0 end
for i = 2, #ARGV, 3 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1] .. ':' .. ARGV[i + 2]) end
numberChange()
return 1
`)

type Ban struct {
	ID, Text string
	Until    time.Time
}

type Bans struct {
	calls *client
	key   string
}

// Restore stores bans that the store has lost, all or none, and reports whether it has. It does
// not if another process has changed a ban since this number was read: that one may have restored
// them, and its operator may have removed one again. Error: alloc.ErrStoreUnavailable.
func (b *Bans) Restore(ctx context.Context, all []Ban, number uint64) (bool, error) {
	args := []any{strconv.FormatUint(number, 10)}
	for _, one := range all {
		args = append(args, one.ID, one.Until.UnixMilli(), one.Text)
	}
	n, err := b.calls.number(ctx, "restore bans", restoreBans, []string{b.key}, args...)
	return n > 0, err
}

// Set stores the text of a ban for all processes of the fleet until its end, at most so
// many bans. A process that may write to the store can write any: bans are not signed, since
// they only refuse. Errors: ErrBansFull, alloc.ErrStoreUnavailable.
func (b *Bans) Set(ctx context.Context, id, text string, until time.Time, most int) error {
	n, err := b.calls.number(ctx, "store a ban", setBan, []string{b.key}, id, until.UnixMilli(), text, most)
	if err == nil && n == 0 {
		err = ErrBansFull
	}
	return err
}

// Delete removes a ban and reports whether it was there. Error: alloc.ErrStoreUnavailable.
func (b *Bans) Delete(ctx context.Context, id string) (bool, error) {
	n, err := b.calls.number(ctx, "remove a ban", deleteBan, []string{b.key}, id)
	return n > 0, err
}

// List returns all bans that have not ended by this machine's clock, and the number of
// the last change, which rises: a lower one is of a store that has lost changes. It is 0 if the store
// never had a ban or has lost all, and 1 if a version without numbers added the last ban. It skips
// and counts damaged bans. Error: alloc.ErrStoreUnavailable.
func (b *Bans) List(ctx context.Context) (bans []Ban, number uint64, err error) {
	var all map[string]string
	err = b.calls.do(ctx, "read the bans", func(ctx context.Context) error {
		all, err = b.calls.redis.hgetAll(ctx, b.key)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if text, ok := strings.CutPrefix(all[keptField], keptValue); ok {
		number = 1
		if n, ok := parseMilliseconds(text); ok {
			number = uint64(n)
		}
	}
	delete(all, keptField)
	now := time.Now().UnixMilli()
	for id, value := range all {
		end, text, ok := strings.Cut(value, ":")
		until, err := strconv.ParseInt(end, 10, 64)
		switch {
		case !ok || err != nil || len(text) > maxBan:
			b.calls.damaged.Add(1)
		case until > now:
			bans = append(bans, Ban{ID: id, Text: text, Until: time.UnixMilli(until)})
		}
	}
	return bans, number, nil
}
