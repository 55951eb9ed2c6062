package redisstore

import (
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// shardTimeout is of calls to a cluster that has a shard that stands still: each
// call that needs it takes so long.
const shardTimeout = 3 * time.Second

// byShard sorts hosts by the shard that knows where they are.
func byShard(t *testing.T, cluster *redistest.Cluster, s *Store, entries []placement.HostEntry) [][]proto.AllocationID {
	t.Helper()
	hosts := make([][]proto.AllocationID, len(cluster.Nodes))
	for _, h := range entries {
		i := cluster.Shard(t, testKeys.host(h.Host))
		hosts[i] = append(hosts[i], h.Host)
	}
	for i, of := range hosts {
		if len(of) == 0 {
			t.Fatalf("shard %d has no host", i)
		}
	}
	return hosts
}

// homesAtOnce asks so many times at once where a host is, and returns how many
// calls failed by the store's fault.
func homesAtOnce(t *testing.T, s *Store, host proto.AllocationID, calls int) (failed int) {
	t.Helper()
	errs := make([]error, calls)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = s.Directory.HomeOf(t.Context(), host) })
	}
	wg.Wait()
	for _, err := range errs {
		switch {
		case unavailable(err):
			failed++
		case err != nil:
			t.Errorf("HomeOf: %v", err)
		}
	}
	return failed
}

func filled(t *testing.T, cluster *redistest.Cluster) (s *Store, node placement.Node, entries []placement.HostEntry,
	hosts [][]proto.AllocationID) {
	t.Helper()
	s = open(t, Config{URL: cluster.URL, Timeout: shardTimeout})
	wantUp(t, s)
	node, entries = relayOf(2, 60)
	wantIntact(t, s, node, false)
	mustRenew(t, s, homeAt(node), entries)
	wantIntact(t, s, node, true)
	return s, node, entries, byShard(t, cluster, s, entries)
}

// TestPausedShard stops one master of a cluster where it is, with its
// connections. Calls that need it fail; those that do not go on, until so many
// in a row have failed that the breaker opens, and from the first of them that
// is let through again. When the master goes on nothing is lost, and no relay
// has to announce everything. The shard is once the one that knows the relays.
func TestPausedShard(t *testing.T) {
	for i, name := range []string{"with the relays", "without them"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, 3)
			s, node, entries, hosts := filled(t, cluster)
			registry := cluster.Shard(t, testKeys.nodes())
			paused := (registry + i) % 3
			before := s.Stats()
			cluster.Nodes[paused].Pause()
			if failed := homesAtOnce(t, s, hosts[paused][0], 5); failed != 5 {
				t.Errorf("%d of 5 calls that need the shard failed", failed)
			}
			wantOtherShards(t, s, hosts, paused)
			if _, err := s.Registry.Announce(t.Context(), node); unavailable(err) != (paused == registry) {
				t.Errorf("Announce: %v", err)
			}
			if got := s.Stats(); got.Open || got.Opened != before.Opened {
				t.Errorf("the breaker opened: %+v, before %+v", got, before)
			}
			if failed := homesAtOnce(t, s, hosts[paused][0], failuresCluster); failed != failuresCluster {
				t.Errorf("%d of %d calls that need the shard failed", failed, failuresCluster)
			}
			if got := s.Stats(); !got.Open || got.Opened != before.Opened+1 {
				t.Errorf("the breaker did not open: %+v, before %+v", got, before)
			}
			other := hosts[(paused+1)%3][0]
			testkit.NoProblemWithin(t, 30*time.Second, "a call to another shard is let through", func() string {
				if _, err := s.Directory.HomeOf(t.Context(), other); err != nil {
					return err.Error()
				}
				return ""
			})
			if got := s.Stats(); got.Open || got.Closed != before.Closed+1 {
				t.Errorf("the breaker did not close: %+v, before %+v", got, before)
			}
			wantOtherShards(t, s, hosts, paused)
			cluster.Nodes[paused].Resume()
			wantUp(t, s)
			wantAll(t, s, homeAt(node), entries)
			wantIntact(t, s, node, true)
		})
	}
}

func wantOtherShards(t *testing.T, s *Store, hosts [][]proto.AllocationID, paused int) {
	t.Helper()
	for i, of := range hosts {
		for _, host := range of {
			if i == paused {
				continue
			}
			if _, err := s.Directory.HomeOf(t.Context(), host); err != nil {
				t.Errorf("HomeOf on shard %d while shard %d stands still: %v", i, paused, err)
			}
		}
	}
}

// TestShardFailover: a master stands still for so long that its replica takes
// over. The store follows, the relay learns that it may have lost writes and
// holds all it has, and the old master changes nothing when it goes on: it is a
// replica then.
func TestShardFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartReplicatedCluster(t, 3)
	s, node, entries, hosts := filled(t, cluster)
	paused := (cluster.Shard(t, testKeys.nodes()) + 1) % 3
	cluster.Nodes[paused].Pause()
	begin := time.Now()
	wantOtherShards(t, s, hosts, paused)
	cluster.Promoted(t, paused)
	promoted := time.Since(begin)
	testkit.NoProblemWithin(t, 30*time.Second, "calls that need the shard are answered", func() string {
		if _, err := s.Directory.HomeOf(t.Context(), hosts[paused][0]); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Logf("the replica took over after %v, the store was there after %v", promoted, time.Since(begin))
	wantUp(t, s)
	// Whether the new master has another history is seen when the client knows
	// it as one: with the heartbeat after the slots are looked at again.
	awaitLoss(t, s, node)
	mustRenew(t, s, homeAt(node), entries)
	wantIntact(t, s, node, true)
	wantAll(t, s, homeAt(node), entries)

	cluster.Nodes[paused].Resume()
	cluster.Demoted(t, paused)
	wantUp(t, s)
	mustRenew(t, s, homeAt(node), entries)
	wantAll(t, s, homeAt(node), entries)
	if _, err := s.Registry.Announce(t.Context(), node); err != nil {
		t.Errorf("Announce after the old master came back: %v", err)
	}
}
