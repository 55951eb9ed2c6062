package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/storetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// roles is a store as a fleet uses it: an API process, and each relay with its own
// certificate, by the users of their roles.
type roles struct {
	*redisstore.Directory // of the API process
	*redisstore.Registry
	api      *redisstore.Store
	relayURL string
	t        *testing.T
	signer   func(alloc.RelayID) *rpc.Signer

	mu     sync.Mutex // guards the following field
	relays map[alloc.RelayID]*redisstore.Store
}

var (
	_ placement.Directory = (*roles)(nil)
	_ placement.Registry  = (*roles)(nil)
)

func openStore(t *testing.T, url string, signer placement.Signer) *redisstore.Store {
	s, err := redisstore.New(redisstore.Config{URL: url, Signer: signer, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, s.Close()); err != nil {
			t.Error(err)
		}
		if st := s.Stats(); st.Unverified+st.Damaged > 0 {
			t.Errorf("%d entries of the fleet are not verified, %d damaged", st.Unverified, st.Damaged)
		}
	})
	return s
}

func (r *roles) relay(id alloc.RelayID) *redisstore.Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.relays[id] == nil {
		r.relays[id] = openStore(r.t, r.relayURL, r.signer(id))
	}
	return r.relays[id]
}

func (r *roles) Renew(ctx context.Context, home placement.Home, entries []placement.HostEntry) ([]placement.Lost, error) {
	return r.relay(home.Relay).Directory.Renew(ctx, home, entries)
}

func (r *roles) Drop(ctx context.Context, home placement.Home, entries []placement.HostEntry) error {
	return r.relay(home.Relay).Directory.Drop(ctx, home, entries)
}

func (r *roles) Announce(ctx context.Context, n placement.Node) (bool, error) {
	return r.relay(n.Relay).Registry.Announce(ctx, n)
}

func (r *roles) Withdraw(ctx context.Context, relay alloc.RelayID, boot uint64) error {
	return r.relay(relay).Registry.Withdraw(ctx, relay, boot)
}

func (k *fleetKit) signers() func(alloc.RelayID) *rpc.Signer {
	var mu sync.Mutex
	made := make(map[alloc.RelayID]*rpc.Signer)
	return func(id alloc.RelayID) *rpc.Signer {
		mu.Lock()
		defer mu.Unlock()
		if made[id] != nil {
			return made[id]
		}
		r := rpc.Request{Role: rpc.RoleRelay, Relay: id}
		if id.IsZero() {
			r.Role = rpc.RoleAPI
		}
		c := k.settings(id.String(), r)
		s, err := rpc.NewSigner(clusterFiles(&c), id)
		if err != nil {
			k.t.Error(err)
		}
		made[id] = s
		return s
	}
}

// storeUsers are the lines of docs/fleet.md that make the users, by user.
func storeUsers(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 3 && words[0] == "ACL" && words[1] == "SETUSER" && words[3] == "reset" {
			lines[words[2]] = strings.TrimSpace(line)
		}
	}
	return lines
}

var storeRoles = map[string]string{"ferry-relay": "RELAY-PASSWORD", "ferry-api": "API-PASSWORD"}

// storeUserArgs are the arguments of a server that has the users from its start.
func storeUserArgs(t *testing.T) (args []string) {
	t.Helper()
	for user, line := range storeUsers(t) {
		_, rules, _ := strings.Cut(line, " reset ")
		args = append(append(args, "--user", user), strings.Fields(rules)...)
	}
	return args
}

func setStoreUsers(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	lines := storeUsers(t)
	for user := range storeRoles {
		for _, s := range servers {
			if got := s.Do(lines[user]); got != "+OK" {
				t.Fatalf("%q: %s", lines[user], got)
			}
		}
	}
}

func userURL(url, user string) string {
	return strings.Replace(url, "://", "://"+user+":"+storeRoles[user]+"@", 1)
}

// TestStoreUsers: the users of docs/fleet.md suffice for their roles. Relays and API
// processes with real certificates pass the tests of all stores. On a cluster those of the
// registry show what its client needs besides; package redisstore passes all of them there.
func TestStoreUsers(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	signers := k.signers()
	alone := k.redis
	suites := func(t *testing.T, url string, directory bool, servers ...*redistest.Server) {
		t.Parallel()
		setStoreUsers(t, servers...)
		lose := func() {
			for _, s := range servers {
				s.Do("FLUSHALL")
			}
		}
		fresh := func(t *testing.T) *roles {
			lose()
			api := openStore(t, userURL(url, "ferry-api"), signers(alloc.RelayID{}))
			return &roles{
				Directory: api.Directory, Registry: api.Registry, api: api, t: t,
				relayURL: userURL(url, "ferry-relay"), signer: signers, relays: make(map[alloc.RelayID]*redisstore.Store),
			}
		}
		if directory {
			storetest.RunDirectory(t, func(t *testing.T) placement.Directory { return fresh(t) })
		}
		storetest.RunRegistry(t, func(t *testing.T) (placement.Registry, func()) { return fresh(t), lose })
		t.Run("Quotas", func(t *testing.T) { testQuotas(t, fresh(t)) })
	}
	t.Run("Server", func(t *testing.T) { suites(t, alone.URL, true, alone) })
	t.Run("Cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3)
		suites(t, c.URL, false, c.Nodes...)
	})
}

func testQuotas(t *testing.T, r *roles) {
	for n := range 2 {
		id := alloc.RelayID{byte(n + 1)}
		for range 2 {
			if err := r.relay(id).Leases.Set(t.Context(), id.String(), time.Minute, []redisstore.Use{{Scope: "players", Used: 5}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n, err := r.api.Leases.Used(t.Context(), "players"); n != 10 || err != nil {
		t.Errorf("Used = %d, %v", n, err)
	}
	for range 2 {
		if ok, _, err := r.api.Buckets.Take(t.Context(), "player", 60); !ok || err != nil {
			t.Errorf("Take: %v, %v", ok, err)
		}
	}
	if err := r.api.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRegionsByRole: with the users of docs/fleet.md API processes publish the regions of a store, and relays read
// them. A relay of other settings does not use the store, and no relay's password changes what the others read.
func TestRegionsByRole(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	setStoreUsers(t, k.redis)
	signers := k.signers()
	open := func(user string, relay alloc.RelayID, region string, symbols map[string]string) *redisstore.Store {
		s, err := redisstore.New(redisstore.Config{
			URL: userURL(k.redis.URL, user), Signer: signers(relay), Timeout: 20 * time.Second,
			Region: region, Symbols: symbols, Relay: !relay.IsZero(),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	ours := map[string]string{"6": "eu", "7": "us"}
	first := open("ferry-relay", alloc.RelayID{1}, "us", ours)
	if err := first.Ping(t.Context()); err != nil {
		t.Error("a relay before any API process:", err)
	}
	if got := k.redis.Do("EXISTS ferry:regions"); got != ":0" {
		t.Error("a relay has published its region")
	}
	if err := open("ferry-api", alloc.RelayID{}, "eu", ours).Ping(t.Context()); err != nil {
		t.Fatal("API process:", err)
	}
	for name, c := range map[string]struct {
		region  string
		symbols map[string]string
		used    bool
	}{
		"the same":       {"eu", ours, true},
		"another region": {"us", ours, false},
		"another symbol": {"eu", map[string]string{"8": "eu", "7": "us"}, false},
		"a third region": {"eu", map[string]string{"6": "eu", "7": "us", "8": "asia:1"}, true},
	} {
		s := open("ferry-relay", alloc.RelayID{1}, c.region, c.symbols)
		if err := errors.Join(s.Ping(t.Context()), s.Regions.Err()); (err == nil) != c.used {
			t.Errorf("%s: %v", name, err)
		}
	}
	testkit.Within(t, time.Minute, "the relay of another region to find out", func() bool {
		return first.Ping(t.Context()) != nil && first.Regions.Err() != nil
	})
}

// writesOf are commands that change a key, each in a way of its own.
func writesOf(key string) (all []string) {
	for _, command := range []string{
		"SET %s x", "DEL %s", "PEXPIRE %s 1", "HSET %s own x", "HDEL %s own", "HSETNX %s x y", "ZADD %s 1 x", "ZREM %s x",
		`EVAL "return redis.call('DEL', KEYS[1])" 1 %s`, `EVAL "return redis.call('DEL', '%s')" 0`,
	} {
		all = append(all, fmt.Sprintf(command, key))
	}
	return all
}

// refused are the errors for what a user may not do.
var refused = regexp.MustCompile(`^-(NOPERM|ERR The user executing the script can't|ERR ACL failure)`)

// TestStoreUsersLimits: a user can do nothing with the keys of the other role, of another
// fleet, or with the server.
func TestStoreUsersLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	setStoreUsers(t, server)
	server.Do("HSET ferry:{nodes} x y")
	server.Do("HSET ferry:lease:1 x y")
	both := []string{
		"FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET maxmemory 1", "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE",
		"ACL LIST", "ACL SETUSER other on nopass ~* +@all", "CLIENT LIST", "CLIENT KILL TYPE normal", "MONITOR",
		"SHUTDOWN NOSAVE", "SCRIPT FLUSH", "FUNCTION FLUSH", "SUBSCRIBE x", "PUBLISH x y", "REPLICAOF NO ONE", "SLOWLOG GET",
		"CLUSTER RESET", "SAVE", "MODULE LIST", "SWAPDB 0 1", "RENAME ferry:host:1 ferry:host:2",
		"GET other:code:1", "SET other:code:1 x", "GET x", "SET ferry:x y", "EVAL return(1) 1 other:host:1",
		"HSET other:{nodes} x y", "SET ferry:nodes x",
	}
	only := map[string][]string{
		"ferry-relay": slices.Concat(
			[]string{"GET ferry:bucket:1", "HGETALL ferry:{nodes}:api"},
			writesOf("ferry:bucket:1"), writesOf("ferry:regions"), writesOf("ferry:bans"), writesOf("ferry:{nodes}:api"),
		),
		"ferry-api": slices.Concat(
			writesOf("ferry:{nodes}"), writesOf("ferry:{nodes}:end"), writesOf("ferry:lease:1"),
			[]string{`EVAL_RO "return redis.call('HDEL', KEYS[1], 'x')" 1 ferry:{nodes}`, `EVAL "return redis.call('FLUSHALL')" 0`},
		),
	}
	for user, password := range storeRoles {
		for _, command := range append(both, only[user]...) {
			if got := server.DoAs(user, password, command); !refused.MatchString(got) {
				t.Errorf("%s: %s: %s", user, command, got)
			}
		}
	}
	for _, command := range []string{"HGET ferry:{nodes} x", "HGET ferry:lease:1 x"} {
		if got := server.Do(command); got != "$1\r\ny" {
			t.Errorf("%s: %s", command, got)
		}
		if got := server.DoAs("ferry-api", storeRoles["ferry-api"], command); got != "$1\r\ny" {
			t.Errorf("ferry-api: %s: %s", command, got)
		}
	}
}

// BenchmarkRoles measures what an allocation and a join cost at the store, and what a relay
// spends for its hosts, with certificates.
func BenchmarkRoles(b *testing.B) {
	server := redistest.Start(b)
	dir := b.TempDir()
	ca, err := rpc.NewCA("bench", 0)
	if err != nil {
		b.Fatal(err)
	}
	store := func(r rpc.Request) *redisstore.Store {
		files := rpc.Files{Certificate: dir + "/" + string(r.Role), Key: dir + "/key-" + string(r.Role), CA: dir + "/ca"}
		issued, err := ca.Issue(r)
		if err == nil {
			err = issued.Write(files.Certificate, files.Key)
		}
		if _, statErr := os.Stat(files.CA); err == nil && statErr != nil {
			err = ca.Write(files.CA, dir+"/ca-key")
		}
		if err != nil {
			b.Fatal(err)
		}
		signer, err := rpc.NewSigner(files, r.Relay)
		if err != nil {
			b.Fatal(err)
		}
		s, err := redisstore.New(redisstore.Config{URL: server.URL, Signer: signer, Timeout: 20 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		return s
	}
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	api, relay := store(rpc.Request{Role: rpc.RoleAPI}), store(rpc.Request{Role: rpc.RoleRelay, Relay: home.Relay})
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	smallest, _ := joincode.Pack("66666666")
	host := func(n int) proto.AllocationID {
		return proto.AllocationID{1, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
	}
	code := func(n int) string { return joincode.Unpack(smallest + uint64(n)) }
	allocated := 0
	b.Run("Allocate", func(b *testing.B) {
		for b.Loop() {
			allocated++
			ok, err := api.Directory.PutCode(b.Context(), tenant, code(allocated), host(allocated))
			if err = errors.Join(err, api.Directory.SetHome(b.Context(), host(allocated), home)); err != nil || !ok {
				b.Fatal(ok, err)
			}
		}
	})
	join := func(b *testing.B, n int) {
		id, err := api.Directory.HostOf(b.Context(), tenant, code(n))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := api.Directory.HomeOf(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("FirstJoin", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n = n%allocated + 1
			join(b, n)
		}
	})
	b.Run("NextJoin", func(b *testing.B) {
		for b.Loop() {
			join(b, 1)
		}
	})
	entries := make([]placement.HostEntry, 1000)
	for n := range entries {
		entries[n] = placement.HostEntry{Host: host(1<<20 + n), Tenant: tenant.Hash(), Code: code(1<<20 + n), Since: time.Now()}
	}
	b.Run("Renew1000", func(b *testing.B) {
		for b.Loop() {
			if _, err := relay.Directory.Renew(b.Context(), home, entries); err != nil {
				b.Fatal(err)
			}
		}
	})
}
