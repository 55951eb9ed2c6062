package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

const apiEntryFor = 2 * time.Minute

// ErrNotPermitted is returned by [APIRegistry.Announce] if the store's user may not write the entries of API
// processes, as before the users of docs/fleet.md had that right.
var ErrNotPermitted = errors.New("redisstore: the user of the store may not write {nodes}:api: see its rights in docs/fleet.md")

// apiJSON is the JSON of the entry of an API process. Unknown members are ignored.
type apiJSON struct {
	placement.APIProcess
	UpMS int64 `json:"upMs"`
}

// announceAPI writes the entry of an API process, "at:seal:json", removes expired ones, and returns
// the time of the store and all entries. KEYS: entries. ARGV: boot, lifetime in milliseconds, seal
// and JSON.
var announceAPI = newScript(luaNow + `
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local at = tonumber(string.match(all[i + 1], '^(%d+):'))
  if not at or math.abs(now - at) >= tonumber(ARGV[2]) then redis.call('HDEL', KEYS[1], all[i]) end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ':' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {string.format('%.0f', now), redis.call('HGETALL', KEYS[1])}
`)

// withdrawAPI removes the entry of an API process. KEYS: entries. ARGV: boot.
var withdrawAPI = newScript(`return redis.call('HDEL', KEYS[1], ARGV[1])`)

// APIRegistry has the announcements of API processes, for operators.
type APIRegistry struct {
	calls *client
	keys  keys
	seals *sealer
}

// Announce writes the entry of this API process and returns those of all, with their age by the
// store's clock. It skips damaged entries and those that no member of the fleet has signed. Errors:
// alloc.ErrStoreUnavailable, ErrNotPermitted.
func (r *APIRegistry) Announce(ctx context.Context, p placement.APIProcess) ([]placement.SeenAPIProcess, error) {
	text, err := json.Marshal(apiJSON{p, p.Up.Milliseconds()})
	if err != nil {
		return nil, fmt.Errorf("redisstore: encode the API process: %w", err)
	}
	id := bootText(p.Boot)
	seals, err := r.seals.seal(ctx, apiEntryFor, r.keys.apiStatement(id, string(text)))
	if err != nil {
		return nil, err
	}
	var reply any
	var denied error
	err = r.calls.do(ctx, "announce the API process", func(ctx context.Context) (err error) {
		reply, err = evaluate(ctx, r.calls.redis, announceAPI, []string{r.keys.apis()},
			id, milliseconds(apiEntryFor), seals[0]+":"+string(text))
		if redis.HasErrorPrefix(err, "NOPERM") {
			denied, err = fmt.Errorf("%w: %w", ErrNotPermitted, err), nil // The store answers.
		}
		return err
	})
	if err = errors.Join(err, denied); err != nil {
		return nil, err
	}
	return r.parseAPIs(ctx, reply)
}

func (k keys) apiStatement(boot, text string) statement {
	return statement{k.apis() + ":" + boot, text}
}

func (r *APIRegistry) parseAPIs(ctx context.Context, reply any) (all []placement.SeenAPIProcess, err error) {
	now, fields, ok := parseTimedHash(reply)
	if !ok {
		return nil, r.calls.reportDamaged()
	}
	var claims []claim
	for boot, entry := range fields {
		parts := strings.SplitN(entry, ":", 3)
		var j apiJSON
		n, okBoot := parseHex(boot)
		at, okAt := int64(0), len(parts) == 3 && len(entry) <= maxValue+entrySlack
		if okAt {
			at, okAt = parseMilliseconds(parts[0])
		}
		if !okBoot || !okAt || json.Unmarshal([]byte(parts[2]), &j) != nil {
			r.calls.damaged.Add(1)
			continue
		}
		claims = append(claims, claim{statement: r.keys.apiStatement(boot, parts[2]), api: true, text: parts[1]})
		j.Boot, j.Up = n, max(time.Duration(j.UpMS), 0)*time.Millisecond
		all = append(all, placement.SeenAPIProcess{APIProcess: j.APIProcess, Age: age(now, at)})
	}
	if err := r.seals.verify(ctx, claims); err != nil {
		return nil, err
	}
	signed := all[:0]
	for i := range all {
		if claims[i].ok {
			signed = append(signed, all[i])
		}
	}
	return signed, nil
}

// Withdraw removes the entry of an API process that ends. Error: alloc.ErrStoreUnavailable,
// after which the entry expires.
func (r *APIRegistry) Withdraw(ctx context.Context, boot uint64) error {
	_, err := r.calls.run(ctx, "withdraw the API process", withdrawAPI, []string{r.keys.apis()}, bootText(boot))
	return err
}
