package redistest

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// slots is the number of hash slots of a cluster.
const slots = 16384

// Nodes declare a node failed that was silent for so long. Without replicas that must
// not happen while a test pauses a master: after its return the others regard it as
// failed for twice as long, and a node that regards two of three as failed answers
// nothing itself.
const (
	deadAlone    = time.Minute
	deadReplaced = 4 * time.Second
)

// Cluster is a cluster of masters, with a replica each or without.
type Cluster struct {
	// URL names all masters.
	URL string
	// Nodes are the masters, and Replicas[i] is the replica of Nodes[i].
	Nodes, Replicas []*Server

	dead  time.Duration      // for so long a node is silent that is taken for dead
	buses map[*Server]string // ports of the nodes for each other
}

// StartCluster starts so many masters, three at least, that share the slots,
// and waits until all of them say that the cluster is whole.
func StartCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	return startMasters(t, masters, deadAlone)
}

func startMasters(t testing.TB, masters int, dead time.Duration) *Cluster {
	t.Helper()
	c := &Cluster{dead: dead, buses: make(map[*Server]string)}
	var addrs []string
	for range masters {
		s := c.node(t)
		c.Nodes, addrs = append(c.Nodes, s), append(addrs, s.Addr)
	}
	for i, s := range c.Nodes {
		from, to := c.slotsOf(i)
		c.must(t, s, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", from, to))
		c.must(t, s, fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1))
	}
	for _, s := range c.Nodes[1:] {
		c.meet(t, s)
	}
	for _, s := range c.Nodes {
		c.says(t, s, "cluster_state:ok", fmt.Sprintf("cluster_slots_assigned:%d", slots), fmt.Sprintf("cluster_size:%d", masters))
	}
	c.URL = "redis+cluster://" + strings.Join(addrs, ",")
	return c
}

// StartReplicatedCluster is StartCluster with a replica of each master, which
// takes over when the master was silent for deadReplaced.
func StartReplicatedCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	c := startMasters(t, masters, deadReplaced)
	for range masters {
		s := c.node(t)
		c.Replicas = append(c.Replicas, s)
		c.meet(t, s)
	}
	all := append(append([]*Server{}, c.Nodes...), c.Replicas...)
	for _, s := range all {
		c.says(t, s, "cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", len(all)))
	}
	for i, s := range c.Replicas {
		_, id, _ := strings.Cut(c.Nodes[i].Do("CLUSTER MYID"), "\r\n")
		c.must(t, s, "CLUSTER REPLICATE "+id)
	}
	for i, s := range c.Replicas {
		testkit.NoProblemWithin(t, patience, "each replica follows its master", func() string {
			if reply := s.Do("INFO replication"); !strings.Contains(reply, "master_link_status:up") {
				return reply
			}
			// Masters that do not know a replica would not vote for it.
			for _, other := range all {
				if reply := other.Do("CLUSTER SLOTS"); strings.Count(reply, "$40\r\n") != len(all) {
					return fmt.Sprintf("%d: %s", i, reply)
				}
			}
			return ""
		})
	}
	return c
}

// Shard returns the number of the master whose slots a key belongs to.
func (c *Cluster) Shard(t testing.TB, key string) int {
	t.Helper()
	var slot int
	reply := c.Nodes[0].Do("CLUSTER KEYSLOT " + key)
	if _, err := fmt.Sscanf(reply, ":%d", &slot); err != nil {
		t.Fatalf("CLUSTER KEYSLOT %s: %s", key, reply)
	}
	for i := range c.Nodes {
		if from, to := c.slotsOf(i); from <= slot && slot <= to {
			return i
		}
	}
	t.Fatalf("no node has slot %d", slot)
	return -1
}

// Promoted waits until the replica of a master has taken its slots.
func (c *Cluster) Promoted(t testing.TB, master int) {
	t.Helper()
	testkit.NoProblemWithin(t, patience, "the replica takes over", func() string {
		if reply := c.Replicas[master].Do("ROLE"); !strings.Contains(reply, "master") {
			return reply
		}
		return ""
	})
}

// Demoted waits until a master that was away follows its replica.
func (c *Cluster) Demoted(t testing.TB, master int) {
	t.Helper()
	testkit.NoProblemWithin(t, patience, "the old master follows its replica", func() string {
		if reply := c.Nodes[master].Do("ROLE"); !strings.Contains(reply, "slave") {
			return reply
		}
		return ""
	})
}

// slotsOf returns the first and the last slot of a master.
func (c *Cluster) slotsOf(i int) (from, to int) {
	return i * slots / len(c.Nodes), (i+1)*slots/len(c.Nodes) - 1
}

// node starts a server that belongs to no cluster yet.
func (c *Cluster) node(t testing.TB) *Server {
	t.Helper()
	bus := testkit.FreePort(t)
	s := Start(t, "--cluster-enabled", "yes", "--cluster-port", bus,
		"--cluster-node-timeout", strconv.FormatInt(c.dead.Milliseconds(), 10), "--cluster-require-full-coverage", "no")
	c.buses[s] = bus
	return s
}

// meet has the first master meet another node.
func (c *Cluster) meet(t testing.TB, s *Server) {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.Addr)
	c.must(t, c.Nodes[0], "CLUSTER MEET "+host+" "+port+" "+c.buses[s])
}

// says waits until a node has all that to say of the cluster.
func (c *Cluster) says(t testing.TB, s *Server, all ...string) {
	t.Helper()
	testkit.NoProblemWithin(t, patience, "the cluster is whole", func() string {
		reply := s.Do("CLUSTER INFO")
		for _, want := range all {
			if !strings.Contains(reply, want) {
				return reply
			}
		}
		return ""
	})
}

func (c *Cluster) must(t testing.TB, s *Server, command string) {
	t.Helper()
	if reply := s.Do(command); reply != "+OK" {
		t.Fatalf("%s at %s: %s", command, s.Addr, reply)
	}
}
