package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/storetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// suites puts stores at url through the tests that all stores pass. Each has a
// prefix of its own, and is another fleet for that.
func suites(t *testing.T, url string, lose func()) {
	number := 0
	fresh := func(t *testing.T) *Store {
		number++
		return open(t, Config{URL: url, Prefix: fmt.Sprintf("fleet%d:", number), Timeout: testTimeout})
	}
	t.Run("Directory", func(t *testing.T) {
		storetest.RunDirectory(t, func(t *testing.T) placement.Directory { return fresh(t).Directory })
	})
	t.Run("Registry", func(t *testing.T) {
		storetest.RunRegistry(t, func(t *testing.T) (placement.Registry, func()) { return fresh(t).Registry, lose })
	})
}

func TestSuites(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	suites(t, server.URL, func() { server.Do("FLUSHALL") })
	wantAllExpire(t, server)
}

func wantAllExpire(t *testing.T, server *redistest.Server) {
	t.Helper()
	keys := server.Do("KEYS *")
	n := 0
	for line := range strings.SplitSeq(keys, "\r\n") {
		if line == "" || line[0] == '*' || line[0] == '$' {
			continue
		}
		n++
		ttl := server.Do("PTTL " + line)
		if !strings.HasPrefix(ttl, ":") || ttl == ":-1" { // :-2: it has ended meanwhile.
			t.Errorf("%s never ends: PTTL %s", line, ttl)
		}
	}
	if n == 0 {
		t.Error("the server has no keys: the test has shown nothing")
	}
}

func TestEverythingExpires(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	ctx := t.Context()
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	steps := []func() error{
		func() error { return s.Directory.SetHome(ctx, hostID(1), home) },
		func() error { _, err := s.Directory.PutCode(ctx, tenant, codeText(1), hostID(1)); return err },
		func() error { _, err := s.Directory.PutCode(ctx, tenant, codeText(2), hostID(2)); return err },
		func() error {
			_, err := s.Directory.MoveCode(ctx, tenant.Hash(), codeText(2), hostID(2), hostID(4))
			return err
		},
		func() error {
			_, err := s.Directory.MoveCode(ctx, tenant.Hash(), codeText(9), hostID(2), hostID(5))
			return err
		},
		func() error {
			third := placement.HostEntry{Host: hostID(3), Tenant: tenant.Hash(), Code: codeText(3), Since: time.Now()}
			_, err := s.Directory.Renew(ctx, home, []placement.HostEntry{third, {Host: hostID(2)}})
			return err
		},
		func() error {
			_, err := s.Registry.Announce(ctx, placement.Node{Relay: home.Relay, Boot: 1})
			return err
		},
		func() error { return lease(ctx, s, "allocations of a project", "a relay", 17, time.Minute) },
		func() error { _, _, err := s.Buckets.Take(ctx, "a player", 60); return err },
	}
	for n, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", n, err)
		}
		wantAllExpire(t, server)
	}
}

// TestHoldLastsAndEnds: what is held lasts longer than what is not.
func TestHoldLastsAndEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout, HostTTL: time.Hour})
	ctx := t.Context()
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	if err := s.Directory.SetHome(ctx, hostID(1), home); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Directory.PutCode(ctx, tenant, codeText(1), hostID(1)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	code, host := testKeys.code(tenant.Hash(), codeText(1)), testKeys.host(hostID(1))
	for _, entries := range []placement.HostEntry{ // The relay knows the code, and does not.
		{Host: hostID(1), Tenant: tenant.Hash(), Code: codeText(1), Since: time.Now()},
		{Host: hostID(1), Tenant: tenant.Hash(), Since: time.Now()},
	} {
		for _, key := range []string{code, host, testKeys.codes(tenant.Hash())} {
			if got := server.Do("PEXPIRE " + key + " 60000"); got != ":1" {
				t.Fatalf("PEXPIRE %s: %s", key, got)
			}
		}
		if lost, err := s.Directory.Renew(ctx, home, []placement.HostEntry{entries}); len(lost) != 0 || err != nil {
			t.Fatal(lost, err)
		}
		for _, key := range []string{code, host, testKeys.codes(tenant.Hash())} {
			var ms int
			if _, err := fmt.Sscanf(server.Do("PTTL "+key), ":%d", &ms); err != nil || ms <= 60_000 || ms > 3_600_000 {
				t.Errorf("PTTL %s = %d, %v after Renew", key, ms, err)
			}
		}
	}
}

func TestCodesThatEndedAreNotCounted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout, HostTTL: 50 * time.Millisecond})
	const many = 40
	for n := range many {
		if ok, err := s.Directory.PutCode(t.Context(), tenant, codeText(n), hostID(n)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	testkit.NoProblemWithin(t, 30*time.Second, "no code counts", func() string {
		if _, n, err := s.Directory.Codes(t.Context(), tenant, hostID(1)); n != 0 || err != nil {
			return fmt.Sprint(n, err)
		}
		return ""
	})
	testkit.NoProblemWithin(t, 30*time.Second, "no key of codes or hosts is left", func() string {
		if keys := server.Do("KEYS ferry:[^s]*"); keys != "*0" {
			return keys
		}
		return ""
	})
	// With a list that lasts, each put takes off more than it puts on.
	for n := range many {
		server.Do(fmt.Sprintf("ZADD %s 1 %s", testKeys.codes(tenant.Hash()), codeText(n)))
	}
	long := open(t, Config{URL: server.URL, Timeout: testTimeout})
	for n := range 3 {
		if ok, err := long.Directory.PutCode(t.Context(), tenant, codeText(1000+n), hostID(1000+n)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if got := server.Do("ZCARD " + testKeys.codes(tenant.Hash())); got != ":3" {
		t.Errorf("the list has %s members, want 3", got)
	}
}

// TestCrashBetweenSteps takes each second step away, as a crash does, and looks
// what is left.
func TestCrashBetweenSteps(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	ctx := t.Context()
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	put := func(n int) {
		t.Helper()
		if ok, err := s.Directory.PutCode(ctx, tenant, codeText(n), hostID(n)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	wantHost := func(n int, want proto.AllocationID) {
		t.Helper()
		if got, err := s.Directory.HostOf(ctx, tenant, codeText(n)); got != want {
			t.Errorf("HostOf code %d = %v, %v; want %v", n, got, err, want)
		}
	}

	// PutCode: the code is there, the host's entry is not. The host gets another.
	put(1)
	server.Do("DEL " + testKeys.host(hostID(1)))
	wantHost(1, hostID(1))
	if ok, err := s.Directory.PutCode(ctx, tenant, codeText(2), hostID(1)); !ok || err != nil {
		t.Error("PutCode after a crash:", ok, err)
	}
	// A code that its host has and that leads nowhere is put back.
	server.Do("DEL " + testKeys.code(tenant.Hash(), codeText(2)))
	if got, err := s.Directory.CodeOf(ctx, tenant, hostID(1)); got != codeText(2) || err != nil {
		t.Errorf("CodeOf a host whose code was lost: %q, %v", got, err)
	}
	wantHost(2, hostID(1))

	// Drop and Forget: the host is gone, its code is not. It leads to that host
	// until it ends, and no other host can get it until then.
	put(3)
	server.Do("DEL " + testKeys.host(hostID(3)))
	wantHost(3, hostID(3))
	if ok, err := s.Directory.PutCode(ctx, tenant, codeText(3), hostID(4)); ok || err != nil {
		t.Error("PutCode of a code that has not ended:", ok, err)
	}
	entries := []placement.HostEntry{{Host: hostID(3), Tenant: tenant.Hash(), Code: codeText(3)}}
	if err := s.Directory.Drop(ctx, home, entries); err != nil {
		t.Error(err)
	}
	wantHost(3, proto.AllocationID{}) // Drop once more does it.
}

func TestDamagedValues(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	ctx := t.Context()
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	server.Do("SET " + testKeys.code(tenant.Hash(), codeText(1)) + " nonsense")
	server.Do("HSET " + testKeys.host(hostID(1)) + " h nonsense c nonsense")
	server.Do("HSET " + testKeys.nodes() + " nonsense nonsense")
	if _, err := s.Directory.HostOf(ctx, tenant, codeText(1)); !unavailable(err) {
		t.Errorf("HostOf: %v", err)
	}
	if _, err := s.Directory.HomeOf(ctx, hostID(1)); !unavailable(err) {
		t.Errorf("HomeOf: %v", err)
	}
	if _, err := s.Directory.CodeOf(ctx, tenant, hostID(1)); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("CodeOf: %v", err)
	}
	if nodes, err := s.Registry.Nodes(ctx); len(nodes) != 0 || err != nil {
		t.Errorf("Nodes: %v, %v", nodes, err)
	}
	if got := s.Stats(); got.Damaged != 4 || got.Opened != 0 {
		t.Errorf("%d values are damaged, and the breaker opened %d times", got.Damaged, got.Opened)
	}
	entries := []placement.HostEntry{{Host: hostID(1), Tenant: tenant.Hash(), Code: codeText(1), Since: time.Now()}}
	if lost, err := s.Directory.Renew(ctx, home, entries); len(lost) != 0 || err != nil {
		t.Error(lost, err)
	}
	if got, err := s.Directory.HostOf(ctx, tenant, codeText(1)); got != hostID(1) || err != nil {
		t.Error(got, err)
	}
	if got, err := s.Directory.HomeOf(ctx, hostID(1)); got != home || err != nil {
		t.Error(got, err)
	}
}

func TestMigration(t *testing.T) {
	server := redistest.Start(t)
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := open(t, Config{URL: server.URL, Prefix: fmt.Sprintf("fleet%d:", seed), Timeout: testTimeout})
			storetest.RunMigration(t, s.Directory, seed, 10)
		})
	}
}
