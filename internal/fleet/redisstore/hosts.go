package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

// batch bounds the hosts in one pipeline: about 50 kB in each direction, and a few
// milliseconds of processor time, so that a timeout of a batch means that the store is
// slow.
const batch = 128

// maxAge bounds the accepted age of a host, against clocks that are far off.
const maxAge = 10 * 365 * 24 * time.Hour

type hostStore struct {
	calls *client
	keys  keys
	seals *sealer
	ttl   time.Duration
}

// Renew is that of placement.Directory. The age of a host is the time since HostEntry.Since on
// this process's clock. If the relay has no code, the one in the store is renewed. A malformed
// code counts as none. After alloc.ErrStoreUnavailable it may be repeated.
func (s *hostStore) Renew(ctx context.Context, home placement.Home, entries []placement.HostEntry) ([]placement.Lost, error) {
	var lost []placement.Lost
	for part := range slices.Chunk(entries, batch) {
		some, err := s.renew(ctx, home, part)
		lost = append(lost, some...)
		if err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// renew holds one batch: first the codes, so that the code of a host always leads to it,
// then the hosts, and then the codes found in their entries.
func (s *hostStore) renew(ctx context.Context, home placement.Home, entries []placement.HostEntry) (lost []placement.Lost, err error) {
	var coded []codeHolder
	statements := make([]statement, len(entries))
	for i, h := range entries {
		statements[i] = s.keys.homeStatement(h.Host, home)
		if c, ok := canonical(h.Tenant, h.Code); ok {
			coded = append(coded, codeHolder{HostEntry: h, code: c})
		}
	}
	homes, err := s.seals.seal(ctx, s.ttl, statements...)
	if err != nil {
		return nil, err
	}
	if err := s.renewCodes(ctx, coded); err != nil {
		return nil, err
	}
	known := make(map[proto.AllocationID]*codeHolder, len(coded))
	for i := range coded {
		known[coded[i].Host] = &coded[i]
		if !coded[i].kept {
			lost = append(lost, placement.Lost{Host: coded[i].Host, Holder: coded[i].holder})
		}
	}
	hosts := make([]invocation, len(entries))
	for i, h := range entries {
		hosts[i] = s.renewHost(homeText(home)+":"+homes[i], h.Host, known[h.Host])
	}
	replies, err := s.calls.runAll(ctx, "renew hosts", hosts)
	if err != nil {
		return lost, err
	}
	more, err := s.settle(ctx, entries, replies, known)
	return append(lost, more...), err
}

// codeHolder is a host that holds a code. renewCodes sets seal, kept and holder.
type codeHolder struct {
	placement.HostEntry
	code hostCode
	seal string
	kept bool // the code leads to the host

	holder proto.AllocationID // to which it leads if it is not kept
}

// renewCodes renews codes. A code that leads to an older host is not kept, if the entry
// that says so has a valid signature; otherwise that entry is replaced.
func (s *hostStore) renewCodes(ctx context.Context, all []codeHolder) error {
	now := time.Now()
	statements := make([]statement, len(all))
	for i := range all {
		statements[i] = s.keys.codeStatement(all[i].code, all[i].Host)
	}
	seals, err := s.seals.seal(ctx, s.ttl, statements...)
	if err != nil {
		return err
	}
	codes := make([]invocation, len(all))
	for i := range all {
		all[i].seal = seals[i]
		codes[i] = s.renewCode(&all[i], now, "")
	}
	replies, err := s.calls.runAll(ctx, "renew join codes", codes)
	if err != nil {
		return err
	}
	var claims []claim
	var rivals []int
	for i := range all {
		other, taken := replies[i].(string)
		if all[i].kept = !taken; taken {
			claimed, _ := s.keys.codeClaim(all[i].code, other)
			claims, rivals = append(claims, claimed), append(rivals, i)
			all[i].holder, _, _ = parseCodeValue(other)
		}
	}
	if err := s.seals.verify(ctx, claims); err != nil {
		return err
	}
	var forged []invocation
	for n, i := range rivals {
		if !claims[n].ok {
			all[i].kept = true
			forged = append(forged, s.renewCode(&all[i], now, replies[i].(string)))
		}
	}
	_, err = s.calls.runAll(ctx, "replace forged join codes", forged)
	return err
}

func (s *hostStore) renewCode(h *codeHolder, now time.Time, forged string) invocation {
	age := min(max(now.Sub(h.Since), 0), maxAge)
	return invocation{
		script: renewCode,
		keys:   []string{s.keys.code(h.code.tenant, h.code.code), s.keys.codes(h.code.tenant)},
		args:   []any{h.Host.String(), milliseconds(s.ttl), h.code.code, age.Milliseconds(), h.seal, forged},
	}
}

func (s *hostStore) renewHost(home string, host proto.AllocationID, known *codeHolder) invocation {
	code, sealed, became := "", "", ""
	if known != nil {
		code, sealed, became = known.code.String(), known.seal, "0"
		if known.kept {
			became = "1"
		}
	}
	return invocation{
		script: renewHost,
		keys:   []string{s.keys.host(host)},
		args:   []any{home, milliseconds(s.ttl), code, became, sealed},
	}
}

// settle handles the codes in the entries of hosts that differ from those of the relay:
// it drops replaced codes, and renews a code that the relay does not know or that is
// the host's only one, if its seal is valid. It returns the hosts that have lost their
// code.
func (s *hostStore) settle(ctx context.Context, entries []placement.HostEntry, found []any,
	known map[proto.AllocationID]*codeHolder) ([]placement.Lost, error) {
	var drop, release []invocation
	var others []codeHolder
	var claims []claim
	for i, h := range entries {
		text, ok := found[i].(string)
		if !ok {
			continue
		}
		value, sealed := cutSeal(text)
		c, ok := parseHostCode(value)
		switch {
		case !ok:
			s.calls.damaged.Add(1)
			release = append(release, s.releaseFrom(h.Host, value))
		case known[h.Host] != nil && known[h.Host].kept:
			drop = append(drop, s.keys.dropCode(c, h.Host))
		default:
			others = append(others, codeHolder{HostEntry: h, code: c})
			claims = append(claims, s.keys.codeClaimOf(c, h.Host, sealed))
		}
	}
	if _, err := s.calls.runAll(ctx, "drop replaced join codes", drop); err != nil {
		return nil, err
	}
	if err := s.seals.verify(ctx, claims); err != nil {
		return nil, err
	}
	var genuine []codeHolder
	for i, o := range others {
		if claims[i].ok {
			genuine = append(genuine, o)
		} else {
			release = append(release, s.releaseFrom(o.Host, o.code.String()))
		}
	}
	if err := s.renewCodes(ctx, genuine); err != nil {
		return nil, err
	}
	var lost []placement.Lost
	var renew []invocation
	for _, g := range genuine {
		if g.kept {
			renew = append(renew, invocation{resealCode, []string{s.keys.host(g.Host)}, []any{g.code.String(), g.seal}})
		} else {
			lost = append(lost, placement.Lost{Host: g.Host, Holder: g.holder})
			release = append(release, s.releaseFrom(g.Host, g.code.String()))
		}
	}
	if _, err := s.calls.runAll(ctx, "renew join codes of hosts", renew); err != nil {
		return lost, err
	}
	_, err := s.calls.runAll(ctx, "take lost join codes from their hosts", release)
	return lost, err
}

func (s *hostStore) releaseFrom(host proto.AllocationID, code string) invocation {
	return invocation{releaseCode, []string{s.keys.host(host)}, []any{code}}
}

// Drop removes hosts that have ended, and their codes, if home is still their home.
// After alloc.ErrStoreUnavailable it may be repeated; otherwise the rest expires.
func (s *hostStore) Drop(ctx context.Context, home placement.Home, entries []placement.HostEntry) error {
	for part := range slices.Chunk(entries, batch) {
		if err := s.drop(ctx, home, part); err != nil {
			return err
		}
	}
	return nil
}

// drop drops one batch: first the hosts that are still at home, then the codes that led
// to them.
func (s *hostStore) drop(ctx context.Context, home placement.Home, entries []placement.HostEntry) error {
	hosts := make([]invocation, len(entries))
	for i, h := range entries {
		hosts[i] = invocation{dropHost, []string{s.keys.host(h.Host)}, []any{homeText(home)}}
	}
	replies, err := s.calls.runAll(ctx, "drop hosts", hosts)
	if err != nil {
		return err
	}
	var codes []invocation
	for i, h := range entries {
		reply, ok := replies[i].([]any)
		if !ok || len(reply) < 2 || reply[0] != int64(1) {
			continue // It has another home by now.
		}
		known, _ := canonical(h.Tenant, h.Code)
		if known.code != "" {
			codes = append(codes, s.keys.dropCode(known, h.Host))
		}
		text, _ := reply[1].(string)
		if value, _ := cutSeal(text); text != "" && value != known.String() {
			if c, ok := parseHostCode(value); ok {
				codes = append(codes, s.keys.dropCode(c, h.Host))
			} else {
				s.calls.damaged.Add(1)
			}
		}
	}
	_, err = s.calls.runAll(ctx, "drop join codes", codes)
	return err
}

func (s *hostStore) SetHome(ctx context.Context, host proto.AllocationID, home placement.Home) error {
	seals, err := s.seals.seal(ctx, s.ttl, s.keys.homeStatement(host, home))
	if err != nil {
		return err
	}
	_, err = s.calls.run(ctx, "set a host's home", setHome,
		[]string{s.keys.host(host)}, homeText(home)+":"+seals[0], milliseconds(s.ttl))
	return err
}

// HomeOf returns the home of a host. Errors: alloc.ErrNotFound,
// alloc.ErrStoreUnavailable, also for a home without a valid signature: it is not known
// that the host has ended.
func (s *hostStore) HomeOf(ctx context.Context, host proto.AllocationID) (placement.Home, error) {
	text, err := s.calls.text(ctx, "look up a host's home", func(ctx context.Context) (string, error) {
		return s.calls.redis.hget(ctx, s.keys.host(host), "h")
	})
	if err != nil {
		return placement.Home{}, err
	}
	if text == "" {
		return placement.Home{}, alloc.ErrNotFound
	}
	value, sealed := cutSeal(text)
	home, ok := parseHome(value)
	if !ok {
		return placement.Home{}, s.calls.reportDamaged()
	}
	genuine, err := s.seals.isGenuine(ctx,
		claim{statement: s.keys.homeStatement(host, home), relay: home.Relay, api: true, text: sealed})
	switch {
	case err != nil:
		return placement.Home{}, err
	case !genuine:
		return placement.Home{}, errUnverified
	}
	return home, nil
}

// The fields of a host's entry: h is its home, c its code, each with its seal. Scripts
// compare them without the seals.

// setHome stores the home of a host. KEYS: host. ARGV: home with seal, milliseconds.
var setHome = newScript(`
redis.call('HSET', KEYS[1], 'h', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
`)

// claimCode gives a host a code if it has none, and returns 1, else 0. KEYS: host.
// ARGV: code with seal, milliseconds.
var claimCode = newScript(`
if redis.call('HSETNX', KEYS[1], 'c', ARGV[1]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
`)

// peekCode returns the code of a host, or nothing. KEYS: host.
var peekCode = newScript(`return redis.call('HGET', KEYS[1], 'c')`)

// releaseCode removes this code from a host, or any code if ARGV[1] is empty. It
// returns the removed code, or nothing. KEYS: host. ARGV: code or empty.
var releaseCode = newScript(`
local c = redis.call('HGET', KEYS[1], 'c')
if not c or ARGV[1] ~= '' and (string.match(c, '^[^:]*:[^:]*') or c) ~= ARGV[1] then return false end
redis.call('HDEL', KEYS[1], 'c')
return c
`)

// renewHost stores the home of a host, and the state of the relay's code: '1' the code
// leads to the host, '0' it leads to another one, ” the relay has none. It returns a
// different code that the entry had, or nothing. The relay's code replaces that one.
// KEYS: host. ARGV: home with seal, milliseconds, code or empty, state, seal of the code.
var renewHost = newScript(`
redis.call('HSET', KEYS[1], 'h', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local c = redis.call('HGET', KEYS[1], 'c')
local same = c and string.match(c, '^[^:]*:[^:]*') == ARGV[3]
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'c', ARGV[3] .. ':' .. ARGV[5])
elseif ARGV[4] == '0' and same then
  redis.call('HDEL', KEYS[1], 'c')
end
if not c or same then return false end
return c
`)

// resealCode replaces the seal of a host's code, and returns 1, or 0 if the host has
// another code by now. KEYS: host. ARGV: code, seal.
var resealCode = newScript(`
local c = redis.call('HGET', KEYS[1], 'c')
if not c or string.match(c, '^[^:]*:[^:]*') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'c', ARGV[1] .. ':' .. ARGV[2])
return 1
`)

// dropHost removes a host unless it has another home. It returns 0 if it has, else 1
// with the code of the host, if any. KEYS: host. ARGV: home.
var dropHost = newScript(`
local e = redis.call('HMGET', KEYS[1], 'h', 'c')
if e[1] and string.match(e[1], '^[^:]*:[^:]*') ~= ARGV[1] then return {0} end
redis.call('DEL', KEYS[1])
return {1, e[2] or ''}
`)
