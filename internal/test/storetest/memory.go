package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

var _ placement.Directory = (*MemoryDirectory)(nil)

// MemoryDirectory is a placement.Directory in this process's memory: the reference for the
// one in Redis, fast enough for many simulated migrations. Its methods may be called
// concurrently, and fail only with alloc.ErrNotFound, alloc.ErrCodeNotFound and
// alloc.ErrCodeMalformed.
type MemoryDirectory struct {
	now func() time.Time

	mu     sync.Mutex // guards the following fields
	hosts  map[proto.AllocationID]place
	codes  map[codeKey]proto.AllocationID // each leads to a host that has it
	counts map[uint64]int                 // codes by tenant, none of them zero
	swept  time.Time                      // when hosts that had ended were last dropped
}

// codeKey identifies a join code, packed by joincode.Pack, within its tenant.
type codeKey struct{ tenant, code uint64 }

// place is what is known of a host.
type place struct {
	home  placement.Home // zero: not known
	code  codeKey        // zero: it has none
	since time.Time      // by which its code is older or younger than others; appointed: MoveCode gave it
	until time.Time      // when it ends unless it is entries
}

// appointed is the since of a host that has its code by MoveCode: earlier than that of any
// host that a relay holds.
var appointed = time.UnixMilli(0)

// NewMemoryDirectory returns an empty directory on the clock now; nil means
// time.Now.
func NewMemoryDirectory(now func() time.Time) *MemoryDirectory {
	if now == nil {
		now = time.Now
	}
	return &MemoryDirectory{
		now: now, hosts: make(map[proto.AllocationID]place),
		codes: make(map[codeKey]proto.AllocationID), counts: make(map[uint64]int),
	}
}

// enter takes the lock and drops what has ended. It returns the time.
func (d *MemoryDirectory) enter() time.Time {
	d.mu.Lock()
	now := d.now()
	if now.Sub(d.swept) < placement.HostTTL/2 {
		return now
	}
	d.swept = now
	for host, p := range d.hosts {
		if !now.Before(p.until) {
			d.remove(host, p)
		}
	}
	return now
}

// look returns what is known of a host that has not ended. It needs mu, as all
// that follow.
func (d *MemoryDirectory) look(host proto.AllocationID, now time.Time) (place, bool) {
	p, ok := d.hosts[host]
	if ok && !now.Before(p.until) {
		d.remove(host, p)
		return place{}, false
	}
	return p, ok
}

// holder returns the host that a code leads to.
func (d *MemoryDirectory) holder(key codeKey, now time.Time) (host proto.AllocationID, p place, ok bool) {
	if host, ok = d.codes[key]; ok {
		p, ok = d.look(host, now)
	}
	return host, p, ok
}

// uncode takes the code from a host and returns what is left of it.
func (d *MemoryDirectory) uncode(host proto.AllocationID, p place) place {
	if p.code == (codeKey{}) {
		return p
	}
	delete(d.codes, p.code)
	if d.counts[p.code.tenant]--; d.counts[p.code.tenant] == 0 {
		delete(d.counts, p.code.tenant)
	}
	p.code = codeKey{}
	d.hosts[host] = p
	return p
}

// encode gives a code that leads nowhere to a host that has none.
func (d *MemoryDirectory) encode(host proto.AllocationID, p place, key codeKey) place {
	p.code = key
	d.codes[key] = host
	d.counts[key.tenant]++
	d.hosts[host] = p
	return p
}

func (d *MemoryDirectory) remove(host proto.AllocationID, p place) {
	d.uncode(host, p)
	delete(d.hosts, host)
}

// PutCode remembers code for host. It reports false, and changes nothing, when
// the tenant has that code or the host has one.
func (d *MemoryDirectory) PutCode(_ context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return false, alloc.ErrCodeMalformed
	}
	key := codeKey{t.Hash(), packed}
	now := d.enter()
	defer d.mu.Unlock()
	p, _ := d.look(host, now)
	if _, _, taken := d.holder(key, now); taken || p.code != (codeKey{}) {
		return false, nil
	}
	p.since, p.until = now, now.Add(placement.HostTTL)
	d.encode(host, p, key)
	return true, nil
}

// MoveCode makes a code of from, or one that leads nowhere, the code of to. It reports
// false, and changes nothing, when the code leads to another host or to has another code.
func (d *MemoryDirectory) MoveCode(_ context.Context, tenant uint64, code string, from, to proto.AllocationID) (bool, error) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return false, alloc.ErrCodeMalformed
	}
	key := codeKey{tenant, packed}
	now := d.enter()
	defer d.mu.Unlock()
	holder, former, taken := d.holder(key, now)
	p, _ := d.look(to, now)
	if taken && holder == to {
		return true, nil
	}
	if taken && holder != from || p.code != (codeKey{}) {
		return false, nil
	}
	if taken {
		former.since = time.Time{} // Its next Renew sets it: it may have been appointed.
		d.uncode(from, former)
	}
	p.since, p.until = appointed, now.Add(placement.HostTTL)
	d.encode(to, p, key)
	return true, nil
}

// HostOf returns the host that code leads to, or alloc.ErrCodeNotFound.
func (d *MemoryDirectory) HostOf(_ context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	packed, ok := joincode.Pack(code)
	if !ok {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	now := d.enter()
	defer d.mu.Unlock()
	host, _, ok := d.holder(codeKey{t.Hash(), packed}, now)
	if !ok {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	return host, nil
}

// CodeOf returns the code of host, or alloc.ErrCodeNotFound.
func (d *MemoryDirectory) CodeOf(_ context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	now := d.enter()
	defer d.mu.Unlock()
	p, _ := d.look(host, now)
	if p.code == (codeKey{}) || p.code.tenant != t.Hash() {
		return "", alloc.ErrCodeNotFound
	}
	return joincode.Unpack(p.code.code), nil
}

// Codes returns how many codes the tenant has.
func (d *MemoryDirectory) Codes(_ context.Context, t alloc.Tenant, _ proto.AllocationID) (string, int, error) {
	d.enter()
	defer d.mu.Unlock()
	return "", d.counts[t.Hash()], nil
}

// Forget drops the code of host, if it has one.
func (d *MemoryDirectory) Forget(host proto.AllocationID) {
	now := d.enter()
	defer d.mu.Unlock()
	if p, ok := d.look(host, now); ok {
		d.uncode(host, p)
	}
}

// SetHome remembers for placement.HostTTL where a new host is.
func (d *MemoryDirectory) SetHome(_ context.Context, host proto.AllocationID, home placement.Home) error {
	now := d.enter()
	defer d.mu.Unlock()
	p, _ := d.look(host, now)
	p.home, p.until = home, now.Add(placement.HostTTL)
	d.hosts[host] = p
	return nil
}

// HomeOf returns it, or alloc.ErrNotFound.
func (d *MemoryDirectory) HomeOf(_ context.Context, host proto.AllocationID) (placement.Home, error) {
	now := d.enter()
	defer d.mu.Unlock()
	p, _ := d.look(host, now)
	if p.home == (placement.Home{}) {
		return placement.Home{}, alloc.ErrNotFound
	}
	return p.home, nil
}

// Renew makes hosts and codes last for another placement.HostTTL, and puts back
// those that are not there. It returns the hosts that lost their code.
func (d *MemoryDirectory) Renew(_ context.Context, home placement.Home, entries []placement.HostEntry) (lost []placement.Lost, err error) {
	now := d.enter()
	defer d.mu.Unlock()
	for _, h := range entries {
		p, _ := d.look(h.Host, now)
		p.home, p.until = home, now.Add(placement.HostTTL)
		if p.since.IsZero() || h.Since.Before(p.since) {
			p.since = h.Since
		}
		d.hosts[h.Host] = p
		packed, ok := joincode.Pack(h.Code)
		if !ok {
			continue
		}
		if holder := d.renewCode(h.Host, p, codeKey{h.Tenant, packed}, now); holder != h.Host {
			lost = append(lost, placement.Lost{Host: h.Host, Holder: holder})
		}
	}
	return lost, nil
}

// renewCode leads a code to a host, unless it leads to an older one. It returns the one that has
// the code.
func (d *MemoryDirectory) renewCode(host proto.AllocationID, p place, key codeKey, now time.Time) proto.AllocationID {
	other, q, taken := d.holder(key, now)
	if taken && other == host {
		return host
	}
	if taken {
		age := q.since.Compare(p.since)
		if age < 0 || age == 0 && slices.Compare(other[:], host[:]) < 0 {
			return other
		}
		d.uncode(other, q)
	}
	d.encode(host, d.uncode(host, p), key)
	return host
}

// Drop removes hosts, and their codes, as far as they still are those of home.
func (d *MemoryDirectory) Drop(_ context.Context, home placement.Home, entries []placement.HostEntry) error {
	now := d.enter()
	defer d.mu.Unlock()
	for _, h := range entries {
		p, ok := d.look(h.Host, now)
		if ok && (p.home == home || p.home == placement.Home{}) {
			d.remove(h.Host, p)
		}
	}
	return nil
}
