package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// PutCode remembers code for host. It reports false, and changes nothing, when
// the tenant has that code or the host has one. Errors: alloc.ErrStoreUnavailable,
// after which the code may lead to host all the same for as long as HoldFor, and
// alloc.ErrCodeMalformed.
//
// The code comes first and the host's entry second, each in a slot of its own.
// Whoever fails in between leaves a code that leads to its host and that nobody
// was told.
func (s *Store) PutCode(ctx context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	c, ok := canonical(t.Hash(), code)
	if !ok {
		return false, alloc.ErrCodeMalformed
	}
	stored, err := s.run(ctx, "put a join code", putCode,
		[]string{s.keys.code(c.tenant, c.code), s.keys.codes(c.tenant)},
		host.String(), milliseconds(s.holdFor), c.code)
	if err != nil || stored != int64(1) {
		return false, err
	}
	claimed, err := s.run(ctx, "put a join code at its host", claimCode,
		[]string{s.keys.host(host)}, c.String(), milliseconds(s.holdFor))
	if err != nil {
		return false, err
	}
	if claimed == int64(1) {
		return true, nil
	}
	drop := s.dropCode(c, host)
	_, err = s.run(ctx, "take back a join code", drop.script, drop.keys, drop.args...)
	return false, err
}

// HostOf returns the host that code leads to, or alloc.ErrCodeNotFound, or
// alloc.ErrStoreUnavailable.
func (s *Store) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	c, ok := canonical(t.Hash(), code)
	if !ok {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	return s.hostOf(ctx, c)
}

func (s *Store) hostOf(ctx context.Context, c hostCode) (proto.AllocationID, error) {
	text, err := s.text(ctx, "look up a join code", func(ctx context.Context) *redis.StringCmd {
		return s.client.Get(ctx, s.keys.code(c.tenant, c.code))
	})
	if err != nil {
		return proto.AllocationID{}, err
	}
	if text == "" {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	host, ok := parseCodeValue(text)
	if !ok {
		s.damaged.Add(1)
		return proto.AllocationID{}, errDamaged
	}
	return host, nil
}

// CodeOf returns the code of host, or alloc.ErrCodeNotFound when it has none or
// is of another tenant, or alloc.ErrStoreUnavailable.
//
// A code that the host's entry has and that leads nowhere was lost on the way,
// and is put back; one that leads to another host by now was lost to that one,
// and is taken out of the entry.
func (s *Store) CodeOf(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	text, err := s.codeOf(ctx, host)
	if err != nil {
		return "", err
	}
	if text == "" {
		return "", alloc.ErrCodeNotFound
	}
	c, ok := parseHostCode(text)
	if !ok {
		s.damaged.Add(1)
		return "", errDamaged
	}
	if c.tenant != t.Hash() {
		return "", alloc.ErrCodeNotFound
	}
	leadsTo, err := s.hostOf(ctx, c)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		return s.restoreCode(ctx, c, host)
	}
	if err != nil {
		return "", err
	}
	if leadsTo == host {
		return c.code, nil
	}
	return "", s.releaseCode(ctx, c, host)
}

// restoreCode puts a code back that host has and that leads nowhere, and looks
// whether host has it still: if it was forgotten meanwhile, nobody else would
// take it back.
func (s *Store) restoreCode(ctx context.Context, c hostCode, host proto.AllocationID) (string, error) {
	stored, err := s.run(ctx, "put a join code back", putCode,
		[]string{s.keys.code(c.tenant, c.code), s.keys.codes(c.tenant)},
		host.String(), milliseconds(s.holdFor), c.code)
	if err != nil {
		return "", err
	}
	if stored != int64(1) {
		leadsTo, err := s.hostOf(ctx, c)
		if err != nil {
			return "", err
		}
		if leadsTo == host {
			return c.code, nil // Somebody else has just put it back.
		}
		return "", s.releaseCode(ctx, c, host)
	}
	text, err := s.codeOf(ctx, host)
	if err != nil {
		return "", err
	}
	if text == c.String() {
		return c.code, nil
	}
	drop := s.dropCode(c, host)
	if _, err := s.run(ctx, "take back a join code", drop.script, drop.keys, drop.args...); err != nil {
		return "", err
	}
	return "", alloc.ErrCodeNotFound
}

// codeOf returns the code of host as its entry has it, empty if there is none.
func (s *Store) codeOf(ctx context.Context, host proto.AllocationID) (string, error) {
	return s.text(ctx, "look up a host's join code", func(ctx context.Context) *redis.StringCmd {
		return s.client.HGet(ctx, s.keys.host(host), "c")
	})
}

// releaseCode takes a code out of the entry of a host to which it does not lead.
func (s *Store) releaseCode(ctx context.Context, c hostCode, host proto.AllocationID) error {
	if _, err := s.run(ctx, "take a lost join code from its host", releaseCode,
		[]string{s.keys.host(host)}, c.String()); err != nil {
		return err
	}
	return alloc.ErrCodeNotFound
}

// Codes returns how many codes the tenant has, or alloc.ErrStoreUnavailable.
func (s *Store) Codes(ctx context.Context, t alloc.Tenant) (int, error) {
	n, err := s.number(ctx, "count join codes", countCodes, []string{s.keys.codes(t.Hash())})
	return int(n), err
}

// dropCode drops the code if it leads to host.
func (s *Store) dropCode(c hostCode, host proto.AllocationID) invocation {
	return invocation{
		script: dropCode,
		keys:   []string{s.keys.code(c.tenant, c.code), s.keys.codes(c.tenant)},
		args:   []any{host.String(), c.code},
	}
}

// text returns what a command reads, empty if there is nothing.
func (s *Store) text(ctx context.Context, what string, get func(context.Context) *redis.StringCmd) (text string, err error) {
	err = s.do(ctx, what, func(ctx context.Context) error {
		text, err = get(ctx).Result()
		return err
	})
	return text, err
}

// canonical returns a code of a tenant in upper case.
func canonical(tenant uint64, code string) (hostCode, bool) {
	packed, ok := alloc.PackCode(code)
	return hostCode{tenant, alloc.UnpackCode(packed)}, ok
}
