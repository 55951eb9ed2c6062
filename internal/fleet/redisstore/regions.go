package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// regionsEvery is the interval at which a store of a region is asked whether it is that, since it may
// have been replaced by another one.
const regionsEvery = 2 * time.Second

// RegionsError is the error of a store that contradicts the regions of this process's settings.
type RegionsError struct{ Region, Text string }

// Error names the region of the settings and what contradicts it.
func (e *RegionsError) Error() string {
	return fmt.Sprintf("redisstore: the store of region %q %s; all processes of a fleet need the same region_stores", e.Region, e.Text)
}

// ownField is the field of the store's own region, whose value begins with ownMark. The other fields
// are symbols.
const (
	ownField = "own"
	ownMark  = "="
)

// publishRegions writes the fields of the regions, "region:end", and removes expired ones, and those that end later
// than this script lets them. If another one contradicts them, it writes nothing and returns that, "field=region".
// KEYS: regions. ARGV: lifetime in milliseconds, then field and region of each.
var publishRegions = newScript(luaNow + `
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local region, stop = string.match(all[i + 1], '^(.*):(%d+)$')
  stop = tonumber(stop or '0')
  if stop <= now or stop > now + ARGV[1] then redis.call('HDEL', KEYS[1], all[i])
  else
    for j = 2, #ARGV, 2 do
      if (all[i] == ARGV[j]) ~= (region == ARGV[j + 1]) then return all[i] .. '=' .. region end
    end
  end
end
for j = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[j], ARGV[j + 1] .. ':' .. string.format('%.0f', now + ARGV[1])) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return ''
`)

type Regions struct {
	own    string // of the store; empty: it has those of all regions, and publishes none
	client servers
	key    string
	fields map[string]string // of this process
	ttl    time.Duration     // of what it publishes; 0: it only reads

	mu      sync.Mutex // guards the following fields
	checked time.Time  // when the store last answered; zero: never
	err     error      // what it contradicted then
}

func newRegions(c *Config, client servers) *Regions {
	r := &Regions{own: c.Region, client: client, key: keys{c.Prefix}.regions(), fields: map[string]string{ownField: ownMark + c.Region}}
	maps.Copy(r.fields, c.Symbols)
	if !c.Relay {
		r.ttl = c.HostTTL
	}
	return r
}

// check compares the regions of this process with those that API processes have published in the store of one of
// them, before its first other call and every regionsEvery. It returns an error if they differ. So two processes
// never use one store for two regions, nor two stores for codes of one symbol. An API process publishes its own; a
// relay may not, so that its password takes no region from the fleet.
func (r *Regions) check(ctx context.Context) error {
	if r.own == "" {
		return nil
	}
	r.mu.Lock()
	if time.Since(r.checked) < regionsEvery {
		defer r.mu.Unlock()
		return r.err
	}
	if !r.checked.IsZero() && r.err == nil {
		r.checked = time.Now() // Other calls go on meanwhile.
	}
	r.mu.Unlock()
	other, err := r.exchange(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked, r.err = time.Now(), r.contradiction(other)
	return r.err
}

// exchange returns a published field that contradicts those of this process, "field=region", and publishes those if
// there is none.
func (r *Regions) exchange(ctx context.Context) (other string, err error) {
	if r.ttl > 0 {
		args := []any{milliseconds(r.ttl)}
		for _, field := range slices.Sorted(maps.Keys(r.fields)) {
			args = append(args, field, r.fields[field])
		}
		reply, err := evaluate(ctx, r.client, publishRegions, []string{r.key}, args...)
		other, ok := reply.(string)
		if err == nil && !ok {
			err = errDamaged
		}
		return other, err
	}
	published, err := r.client.hgetAll(ctx, r.key)
	for field, value := range published {
		region := withoutEnd(value)
		for own, ownRegion := range r.fields {
			if (field == own) != (region == ownRegion) {
				other = field + "=" + region
			}
		}
	}
	return other, err
}

func (r *Regions) contradiction(other string) error {
	field, region, _ := strings.Cut(other, "=")
	switch {
	case other == "":
		return nil
	case field == ownField:
		return &RegionsError{r.own, fmt.Sprintf("is that of region %q for other processes", strings.TrimPrefix(region, ownMark))}
	}
	return &RegionsError{r.own, fmt.Sprintf("says that other processes use the code symbol %s for region %q", field, region)}
}

// Err returns the error of a store that contradicted the settings of this process when it was last asked,
// or nil.
func (r *Regions) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Own returns the region of the store, empty if it has those of all regions.
func (r *Regions) Own() string { return r.own }

// PublishedRegion returns the region that other processes have published for the first store; empty: none,
// or the user of the store may not read it. Error: alloc.ErrStoreUnavailable.
func (s *Stores) PublishedRegion(ctx context.Context) (region string, err error) {
	first := s.all[0].calls
	err = first.do(ctx, "read the store's region", func(ctx context.Context) error {
		region, err = first.redis.hget(ctx, first.regions.key, ownField)
		if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOPERM") {
			return nil
		}
		return err
	})
	return strings.TrimPrefix(withoutEnd(region), ownMark), err
}

// withoutEnd returns the region of a field, "region:end".
func withoutEnd(value string) string {
	if i := strings.LastIndexByte(value, ':'); i >= 0 {
		return value[:i]
	}
	return value
}
