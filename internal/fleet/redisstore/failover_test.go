package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// relayOf is a relay with hosts, as its announcements have them.
func relayOf(n, hosts int) (placement.Node, []placement.HostEntry) {
	node := placement.Node{Relay: alloc.RelayID{byte(n)}, Boot: uint64(n), Region: "north", RecoverFor: time.Minute}
	entries := make([]placement.HostEntry, hosts)
	for i := range entries {
		id := n*10_000 + i
		entries[i] = placement.HostEntry{Host: hostID(id), Tenant: tenant.Hash(), Code: codeText(id), Since: time.Now().Add(-time.Hour)}
	}
	return node, entries
}

func homeAt(n placement.Node) placement.Home { return placement.Home{Relay: n.Relay, Boot: n.Boot} }

func mustRenew(t *testing.T, s *Store, home placement.Home, entries []placement.HostEntry, want ...proto.AllocationID) {
	t.Helper()
	if lost, err := s.Directory.Renew(t.Context(), home, entries); err != nil ||
		!slices.EqualFunc(lost, want, func(l placement.Lost, id proto.AllocationID) bool { return l.Host == id }) {
		t.Fatalf("Renew: lost %v, %v; want %v", lost, err, want)
	}
}

func wantIntact(t *testing.T, s *Store, n placement.Node, want bool) {
	t.Helper()
	if intact, err := s.Registry.Announce(t.Context(), n); err != nil || intact != want {
		t.Fatalf("Announce = %v, %v; want %v", intact, err, want)
	}
}

// awaitLoss waits until a relay that announces itself learns that writes may be
// lost.
func awaitLoss(t *testing.T, s *Store, n placement.Node) {
	t.Helper()
	testkit.NoProblemWithin(t, 30*time.Second, "the relay learns that writes may be lost", func() string {
		if intact, err := s.Registry.Announce(t.Context(), n); err != nil || intact {
			return fmt.Sprint(intact, err)
		}
		return ""
	})
}

func wantAll(t *testing.T, s *Store, home placement.Home, entries []placement.HostEntry) {
	t.Helper()
	for _, h := range entries {
		if got, err := s.Directory.HomeOf(t.Context(), h.Host); got != home || err != nil {
			t.Fatalf("HomeOf %v = %v, %v", h.Host, got, err)
		}
		if got, err := s.Directory.HostOf(t.Context(), tenant, h.Code); got != h.Host || err != nil {
			t.Fatalf("HostOf %v = %v, %v", h.Code, got, err)
		}
		if got, err := s.Directory.CodeOf(t.Context(), tenant, h.Host); got != h.Code || err != nil {
			t.Fatalf("CodeOf %v = %v, %v", h.Host, got, err)
		}
	}
}

// TestLostWrites: the server comes back empty. Its relays learn of it once, and
// put everything back. A host that was given another's code meanwhile, and one
// that got it by chance, lose it to the older one; no two hosts have one code.
func TestLostWrites(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	relay := open(t, Config{URL: server.URL, Timeout: testTimeout})
	api := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, entries := relayOf(1, 300)
	wantIntact(t, relay, node, false)
	mustRenew(t, relay, homeAt(node), entries)
	wantIntact(t, relay, node, true)
	wantAll(t, api, homeAt(node), entries)

	server.Kill()
	server.Restart()
	other, theirs := relayOf(2, 1)
	theirs[0].Code, theirs[0].Since = entries[0].Code, time.Now()
	if ok, err := api.Directory.PutCode(t.Context(), tenant, entries[0].Code, theirs[0].Host); !ok || err != nil {
		t.Fatal("PutCode of a code that the store has lost:", ok, err)
	}
	wantIntact(t, relay, node, false)
	mustRenew(t, relay, homeAt(node), entries)
	wantIntact(t, relay, node, true)
	wantAll(t, api, homeAt(node), entries)
	if _, err := api.Directory.CodeOf(t.Context(), tenant, theirs[0].Host); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("CodeOf the younger host: %v", err)
	}
	mustRenew(t, relay, homeAt(other), theirs, theirs[0].Host)
	wantAll(t, api, homeAt(node), entries)
	if _, n, err := api.Directory.Codes(t.Context(), tenant, hostID(1)); n != len(entries) || err != nil {
		t.Errorf("%d codes, %v; want %d", n, err, len(entries))
	}
}

// TestLostAfterHeartbeat: a failover may lose what was written after the last
// heartbeat and not the heartbeat. The history of the server says so.
func TestLostAfterHeartbeat(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, _ := relayOf(1, 0)
	wantIntact(t, s, node, false)
	wantIntact(t, s, node, true)
	entry := server.Do("HGET " + testKeys.nodes() + " " + node.Relay.String())
	server.Kill()
	server.Restart()
	// The entry is there as it was, as on a replica that had it.
	_, value, _ := cutReply(entry)
	if err := s.calls.redis.(libraryClient).HSet(t.Context(), testKeys.nodes(), node.Relay.String(), value).Err(); err != nil {
		t.Fatal(err)
	}
	wantIntact(t, s, node, false)
	wantIntact(t, s, node, true)
}

// cutReply takes a bulk string out of the protocol.
func cutReply(reply string) (size int, text string, err error) {
	var at int
	if _, err = fmt.Sscanf(reply, "$%d", &size); err != nil {
		return 0, "", err
	}
	for at = 0; reply[at] != '\n'; at++ {
	}
	return size, reply[at+1:], nil
}

// TestLateAnnounce: an entry that a server writes late, because it stood still,
// does not replace a later one.
func TestLateAnnounce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, _ := relayOf(1, 0)
	for range 3 {
		if _, err := s.Registry.Announce(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	text, err := encodeNode(placement.Node{Region: "old"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.calls.run(t.Context(), "announce late", announce, []string{testKeys.nodes(), testKeys.nodesEnd()},
		node.Relay.String(), bootText(node.Boot), 2, 1, 60_000, ":"+string(text), ""); err != nil {
		t.Fatal(err)
	}
	if nodes, err := s.Registry.Nodes(t.Context()); err != nil || len(nodes) != 1 || nodes[0].Region != "north" {
		t.Errorf("Nodes = %+v, %v", nodes, err)
	}
	wantIntact(t, s, node, true)
}

func TestDeadNodesExpire(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, _ := relayOf(1, 0)
	wantIntact(t, s, node, false)
	server.Do("HSET " + testKeys.nodes() + " " + alloc.RelayID{9}.String() + " 1:0000000000000001:1::{}")
	server.Do("ZADD " + testKeys.nodesEnd() + " 1 " + alloc.RelayID{9}.String())
	if nodes, err := s.Registry.Nodes(t.Context()); err != nil || len(nodes) != 1 {
		t.Errorf("Nodes = %v, %v, want none that has ended", nodes, err)
	}
	wantIntact(t, s, node, true)
	if got := server.Do("HLEN " + testKeys.nodes()); got != ":1" {
		t.Errorf("the entries are %s, want 1", got)
	}
}

// TestSentinelFailover: the master dies, the sentinels choose its replica, and
// the store goes on. The relay learns that it may have lost writes.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinels(t)
	s := open(t, Config{URL: set.URL, Timeout: 5 * time.Second})
	node, entries := relayOf(1, 50)
	wantUp(t, s)
	wantIntact(t, s, node, false)
	mustRenew(t, s, homeAt(node), entries)
	wantIntact(t, s, node, true)
	set.Master.Kill()
	wantUp(t, s)
	intact := true
	testkit.NoProblemWithin(t, 30*time.Second, "the relay announces itself", func() string {
		var err error
		if intact, err = s.Registry.Announce(t.Context(), node); err != nil {
			return err.Error()
		}
		return ""
	})
	if intact {
		t.Error("Announce after a failover says that nothing can be lost")
	}
	mustRenew(t, s, homeAt(node), entries)
	wantAll(t, s, homeAt(node), entries)
	wantIntact(t, s, node, true)
	if got := s.Stats(); got.Open {
		t.Errorf("%+v", got)
	}
}

// TestCluster puts the store on a cluster through all tests, and takes one
// shard away: what is on the others goes on, and a relay learns of the loss,
// whichever shard it was.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	t.Run("Suites", func(t *testing.T) {
		suites(t, cluster.URL, func() {
			for _, n := range cluster.Nodes {
				n.Do("FLUSHALL")
			}
		})
	})
	s := open(t, Config{URL: cluster.URL, Timeout: 5 * time.Second, Prefix: "shards:"})
	node, entries := relayOf(1, 200)
	wantIntact(t, s, node, false)
	mustRenew(t, s, homeAt(node), entries)
	wantIntact(t, s, node, true)
	for _, n := range cluster.Nodes {
		if got := n.Do("DBSIZE"); got == ":0" {
			t.Errorf("shard %s has no keys: the keys are not spread", n.Addr)
		}
	}
	for _, shard := range cluster.Nodes {
		shard.Kill()
		var failed, answered int
		for _, h := range entries {
			if _, err := s.Directory.HomeOf(t.Context(), h.Host); err == nil {
				answered++
			} else if unavailable(err) {
				failed++
			} else {
				t.Errorf("HomeOf on a shard that is gone: %v", err)
			}
		}
		if failed == 0 || answered == 0 {
			t.Errorf("without one shard %d calls failed and %d were answered", failed, answered)
		}
		shard.Restart() // It knows its slots, from a file, and has no keys.
		awaitLoss(t, s, node)
		testkit.NoProblemWithin(t, 30*time.Second, "all is put back", func() string {
			if lost, err := s.Directory.Renew(t.Context(), homeAt(node), entries); len(lost) != 0 || err != nil {
				return fmt.Sprint(lost, err)
			}
			return ""
		})
		wantAll(t, s, homeAt(node), entries)
	}
}

func TestPutCodeAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const apis, hosts, codes = 4, 40, 30
	var mu sync.Mutex
	byCode, byHost := make(map[int]int), make(map[int]int)
	var wg sync.WaitGroup
	for range apis {
		s := open(t, Config{URL: server.URL, Timeout: testTimeout})
		wg.Go(func() {
			for h := range hosts {
				for c := range 4 {
					c = (h*7 + c) % codes
					ok, err := s.Directory.PutCode(t.Context(), tenant, codeText(c), hostID(h))
					if err != nil {
						t.Error(err)
					}
					if ok {
						mu.Lock()
						byCode[c]++
						byHost[h]++
						mu.Unlock()
					}
				}
			}
		})
	}
	wg.Wait()
	for c, n := range byCode {
		if n != 1 {
			t.Errorf("code %d was given %d times", c, n)
		}
	}
	for h, n := range byHost {
		if n != 1 {
			t.Errorf("host %d was given %d codes", h, n)
		}
	}
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	if _, n, err := s.Directory.Codes(t.Context(), tenant, hostID(1)); n != len(byCode) || err != nil || n == 0 {
		t.Errorf("%d codes, %v; %d were given", n, err, len(byCode))
	}
}
