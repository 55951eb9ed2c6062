package redistest

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// slots is the number of hash slots of a cluster.
const slots = 16384

// Cluster is a cluster of masters without replicas.
type Cluster struct {
	// URL names all of them.
	URL   string
	Nodes []*Server
}

// StartCluster starts so many masters, three at least, that share the slots,
// and waits until all of them say that the cluster is whole.
func StartCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	c := &Cluster{}
	var addrs, buses []string
	for range masters {
		bus := freePort(t)
		s := Start(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000",
			"--cluster-require-full-coverage", "no")
		c.Nodes, addrs, buses = append(c.Nodes, s), append(addrs, s.Addr), append(buses, bus)
	}
	for i, s := range c.Nodes {
		from, to := i*slots/masters, (i+1)*slots/masters-1
		c.must(t, s, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", from, to))
		c.must(t, s, fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1))
	}
	for i, s := range c.Nodes[1:] {
		host, port, _ := net.SplitHostPort(s.Addr)
		c.must(t, c.Nodes[0], "CLUSTER MEET "+host+" "+port+" "+buses[i+1])
	}
	for _, s := range c.Nodes {
		eventually(t, "the cluster is whole", func() string {
			reply := s.Do("CLUSTER INFO")
			for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_slots_assigned:%d", slots), fmt.Sprintf("cluster_size:%d", masters)} {
				if !strings.Contains(reply, want) {
					return reply
				}
			}
			return ""
		})
	}
	c.URL = "redis+cluster://" + strings.Join(addrs, ",")
	return c
}

func (c *Cluster) must(t testing.TB, s *Server, command string) {
	t.Helper()
	if reply := s.Do(command); reply != "+OK" {
		t.Fatalf("%s at %s: %s", command, s.Addr, reply)
	}
}
