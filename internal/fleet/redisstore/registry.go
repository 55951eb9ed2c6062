package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

// entryGrace is how long an entry stays after its relay's recovery window.
const entryGrace = time.Minute

func lastsFor(n placement.Node) time.Duration {
	return min(max(n.RecoverFor, 0), maxAge) + placement.DeadAfter + entryGrace
}

type Registry struct {
	calls *client
	keys  keys
	seals *sealer

	mu        sync.Mutex // guards the following field; held for no call
	announced map[alloc.RelayID]announced
}

type announced struct {
	boot uint64
	// tried is the number of the last entry that was sent, written that of the
	// last one that the store said it wrote; 0 is none.
	tried, written uint64
	// histories are those of the servers that were seen since the run began.
	histories map[string]bool
}

// maxHistories bounds the histories that are kept. Beyond it all are dropped, and the
// relay announces everything again.
const maxHistories = 256

// maxHistory bounds the bytes of an id; those of Redis have 40.
const maxHistory = 64

// Announce writes the node's entry. It reports whether the store still has what this
// run of the relay announced before. It detects losses by the number of the last entry,
// which goes back in another store or an older copy, and by the histories of the
// servers: each start and each failover begins a new one. Errors:
// alloc.ErrStoreUnavailable, and an error for an entry that is too large.
func (r *Registry) Announce(ctx context.Context, n placement.Node) (intact bool, err error) {
	text, err := encodeNode(n)
	if err != nil {
		return false, err
	}
	number, written := r.nextNumber(n)
	st := r.keys.nodeStatement(n.Relay, n.Boot, number, text)
	seals, err := r.seals.seal(ctx, lastsFor(n), st)
	if err != nil {
		return false, err
	}
	same, err := r.announce(ctx, n, number, written, seals[0]+":"+string(text))
	if err != nil {
		return false, err
	}
	if !same { // The store may have lost the certificate as well: sealing publishes it.
		r.seals.published.set(placement.KeyID{}, time.Time{})
		if _, err := r.seals.seal(ctx, lastsFor(n), st); err != nil {
			return false, err
		}
	}
	return r.sameHistories(n, r.histories(ctx), number) && same && written > 0, nil
}

// announce writes an entry, also over one that seems to be later and has no valid
// signature. It reports whether the entry before was of the same run.
func (r *Registry) announce(ctx context.Context, n placement.Node, number, written uint64, sealed string) (bool, error) {
	forged := ""
	for range 2 {
		reply, err := r.calls.run(ctx, "announce the node", announce, []string{r.keys.nodes(), r.keys.nodesEnd()},
			n.Relay.String(), bootText(n.Boot), number, written, milliseconds(lastsFor(n)), sealed, forged)
		if err != nil {
			return false, err
		}
		later, ok := reply.(string)
		if !ok {
			return reply == int64(1), nil
		}
		forged = later
		if e, ok := r.parseEntry(n.Relay.String(), later, 0); ok {
			if genuine, err := r.seals.isGenuine(ctx, e.claim); err != nil || genuine {
				return err == nil, err
			}
		}
	}
	return false, nil
}

func (r *Registry) nextNumber(n placement.Node) (number, written uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.announced[n.Relay]
	if a.boot != n.Boot || a.histories == nil {
		a = announced{boot: n.Boot, histories: make(map[string]bool)}
	}
	a.tried++
	r.announced[n.Relay] = a
	return a.tried, a.written
}

// sameHistories records a written entry and the histories of the servers, and reports
// whether all of them were known.
func (r *Registry) sameHistories(n placement.Node, histories []string, number uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.announced[n.Relay]
	if !ok || a.boot != n.Boot {
		return false // Withdrawn meanwhile, or announced by another run.
	}
	a.written = max(a.written, number)
	r.announced[n.Relay] = a
	same := true
	for _, h := range histories {
		if !a.histories[h] {
			same = false
		}
		if len(a.histories) >= maxHistories {
			clear(a.histories)
		}
		a.histories[h] = true
	}
	return same
}

// histories returns the history ids of the servers that accept writes. It ignores
// servers that do not answer, since the breaker learns of them by other calls.
func (r *Registry) histories(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, r.calls.timeout)
	defer cancel()
	var mu sync.Mutex
	var all []string
	r.calls.redis.eachReplication(ctx, func(info string) {
		if id := history(info); id != "" {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, id)
		}
	})
	return all
}

func history(info string) string {
	const name = "master_replid:"
	for line := range strings.Lines(info) {
		if id, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(id[:min(len(id), maxHistory)])
		}
	}
	return ""
}

// Nodes returns all entries, with their age by the store's clock. It skips expired and
// damaged entries, and those that their relay has not signed. Error:
// alloc.ErrStoreUnavailable.
func (r *Registry) Nodes(ctx context.Context) ([]placement.Seen, error) {
	reply, err := r.calls.runReadOnly(ctx, "list the nodes", listNodes, []string{r.keys.nodes()})
	if err != nil {
		return nil, err
	}
	entries, damaged, ok := r.parseNodes(reply)
	if !ok {
		return nil, r.calls.reportDamaged()
	}
	r.calls.damaged.Add(uint64(damaged))
	claims := make([]claim, len(entries))
	for i := range entries {
		claims[i] = entries[i].claim
	}
	if err := r.seals.verify(ctx, claims); err != nil {
		return nil, err
	}
	var seen []placement.Seen
	for i := range entries {
		if claims[i].ok {
			seen = append(seen, entries[i].Seen)
		}
	}
	return seen, nil
}

type nodeEntry struct {
	placement.Seen
	claim claim
}

func (r *Registry) parseNodes(reply any) (entries []nodeEntry, damaged int, ok bool) {
	now, fields, ok := parseTimedHash(reply)
	if !ok {
		return nil, 0, false
	}
	for relay, entry := range fields {
		n, ok := r.parseEntry(relay, entry, now)
		switch {
		case !ok:
			damaged++
		case n.Age < lastsFor(n.Node):
			entries = append(entries, n)
		}
	}
	return entries, damaged, true
}

func parseTimedHash(reply any) (now int64, fields map[string]string, ok bool) {
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return 0, nil, false
	}
	text, _ := parts[0].(string)
	now, ok = parseMilliseconds(text)
	list, isList := parts[1].([]any)
	if !ok || !isList || len(list)%2 != 0 {
		return 0, nil, false
	}
	fields = make(map[string]string, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		name, _ := list[i].(string)
		fields[name], _ = list[i+1].(string)
	}
	return now, fields, true
}

// Withdraw removes the entry of a relay if it belongs to that boot. Error:
// alloc.ErrStoreUnavailable, after which the entry expires.
func (r *Registry) Withdraw(ctx context.Context, relay alloc.RelayID, boot uint64) error {
	r.mu.Lock()
	if r.announced[relay].boot == boot {
		delete(r.announced, relay)
	}
	r.mu.Unlock()
	_, err := r.calls.run(ctx, "withdraw the node", withdraw, []string{r.keys.nodes(), r.keys.nodesEnd()},
		relay.String(), bootText(boot))
	return err
}

// nodeJSON is the JSON of a node's entry. Unknown members are ignored, so that versions
// can be mixed during an upgrade.
type nodeJSON struct {
	placement.Node
	Endpoints []endpointJSON `json:"endpoints,omitempty"`
	UpMS      int64          `json:"upMs,omitempty"`
	RecoverMS int64          `json:"recoverMs"`
}

type endpointJSON struct {
	ConnectionType string `json:"type"`
	Network        string `json:"network"`
	Host           string `json:"host"`
	Port           uint16 `json:"port"`
	Reliable       bool   `json:"reliable,omitempty"`
	Secure         bool   `json:"secure,omitempty"`
}

func encodeNode(n placement.Node) ([]byte, error) {
	j := nodeJSON{Node: n, UpMS: n.Up.Milliseconds(), RecoverMS: milliseconds(n.RecoverFor)}
	for _, e := range n.Endpoints {
		j.Endpoints = append(j.Endpoints, endpointJSON(e))
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("redisstore: encode the node: %w", err)
	}
	if len(text) > maxValue {
		return nil, fmt.Errorf("redisstore: the node's entry takes %d bytes, at most %d are read: name fewer endpoints", len(text), maxValue)
	}
	return text, nil
}

// entrySlack bounds the parts of an entry besides its JSON: a time, a boot, a number and
// a seal.
const entrySlack = 64 + maxSeal

// parseEntry parses the entry of a relay: "at:boot:number:seal:json".
func (r *Registry) parseEntry(relay, text string, now int64) (nodeEntry, bool) {
	id, ok := parseID(relay)
	if !ok || len(text) > maxValue+entrySlack {
		return nodeEntry{}, false
	}
	parts := strings.SplitN(text, ":", 5)
	if len(parts) != 5 {
		return nodeEntry{}, false
	}
	at, okAt := parseMilliseconds(parts[0])
	boot, okBoot := parseHex(parts[1])
	number, okNumber := parseMilliseconds(parts[2])
	var j nodeJSON
	if !okAt || !okBoot || !okNumber || json.Unmarshal([]byte(parts[4]), &j) != nil {
		return nodeEntry{}, false
	}
	n := j.Node
	n.Relay, n.Boot = alloc.RelayID(id), boot
	n.Up = max(time.Duration(j.UpMS), 0) * time.Millisecond
	n.RecoverFor = time.Duration(min(max(j.RecoverMS, 0), maxAge.Milliseconds())) * time.Millisecond
	for _, e := range j.Endpoints {
		n.Endpoints = append(n.Endpoints, alloc.ServerEndpoint(e))
	}
	return nodeEntry{
		Seen: placement.Seen{Node: n, Age: age(now, at)},
		claim: claim{
			statement: r.keys.nodeStatement(n.Relay, boot, uint64(number), []byte(parts[4])), relay: n.Relay, text: parts[3],
		},
	}, true
}

// age returns the age of an entry by the clock of the server. One of the future, as after a failover to a server
// whose clock is behind, is as old as it is far away: it does not count for longer than another one.
func age(now, at int64) time.Duration {
	return time.Duration(min(max(now-at, at-now), maxAge.Milliseconds())) * time.Millisecond
}

// announce writes the entry of a relay, "at:boot:number:seal:json", unless a later one of
// the same run exists, which it returns. Otherwise it returns 1 if the previous entry was
// of that run, with the number that the relay last knew to be written or a later one, else
// 0. An entry that equals ARGV[7] is replaced: the caller has found its signature invalid.
// It removes up to 16 expired entries. KEYS: entries, their expiries. ARGV: relay, boot,
// number, last number known to be written, lifetime in milliseconds, seal and JSON, entry
// or empty.
var announce = newScript(luaNow + `
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
    if tonumber(number) > tonumber(ARGV[3]) and v ~= ARGV[7] then return v end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ':' .. ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[6])
redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[1])
for i = 1, 2 do
  if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[5]) then redis.call('PEXPIRE', KEYS[i], ARGV[5]) end
end
return intact
`)

// listNodes returns the time of the store and all entries. It writes nothing. KEYS:
// entries.
var listNodes = newScript(luaNow + `
return {string.format('%.0f', now), redis.call('HGETALL', KEYS[1])}
`)

// withdraw removes the entry of a relay if it is of that run, and returns 1, else 0.
// KEYS: entries, their expiries. ARGV: relay, boot.
var withdraw = newScript(`
local v = redis.call('HGET', KEYS[1], ARGV[1])
if not v or string.match(v, '^%d+:(%x+):') ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
`)
