package redistest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// sentinelCount is the least number of which a majority is left when one dies.
const sentinelCount = 3

// masterName is what the sentinels call the master.
const masterName = "ferry"

// Sentinels are three sentinels that watch a master and its replica.
type Sentinels struct {
	// URL names all three, and the master.
	URL             string
	Master, Replica *Server
}

// downAfter is for how long a master is silent that the sentinels take for dead:
// one that a busy machine has no time for must not be replaced.
const downAfter = 3 * time.Second

// StartSentinels starts five processes and waits until the sentinels know each
// other and the replica. They take the master for dead after downAfter.
func StartSentinels(t testing.TB) *Sentinels {
	t.Helper()
	s := &Sentinels{Master: Start(t)}
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	s.Replica = Start(t, "--replicaof", host, port)
	var addrs []string
	for range sentinelCount {
		addrs = append(addrs, startSentinel(t, host, port))
	}
	testkit.NoProblemWithin(t, patience, "the sentinels know each other and the replica", func() string {
		for _, addr := range addrs {
			reply, err := ask(addr, "SENTINEL MASTER "+masterName)
			for _, want := range []string{
				"num-slaves\r\n$1\r\n1", fmt.Sprintf("num-other-sentinels\r\n$1\r\n%d", sentinelCount-1), "flags\r\n$6\r\nmaster\r\n",
			} {
				if err != nil || !strings.Contains(reply, want) {
					return fmt.Sprintf("%s: %v: %s", addr, err, reply)
				}
			}
		}
		return ""
	})
	testkit.NoProblemWithin(t, patience, "the replica follows its master", func() string {
		if reply := s.Replica.Do("INFO replication"); !strings.Contains(reply, "master_link_status:up") {
			return reply
		}
		return ""
	})
	s.URL = "redis+sentinel://" + strings.Join(addrs, ",") + "/" + masterName
	return s
}

// startSentinel starts one and returns its address.
func startSentinel(t testing.TB, host, port string) string {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), out: &buffer{}}
	for range startTries {
		own := testkit.FreePort(t)
		s.Addr = net.JoinHostPort("127.0.0.1", own)
		config := s.write("sentinel.conf", strings.Join([]string{
			"port " + own, "bind 127.0.0.1", "dir " + s.dir,
			fmt.Sprintf("sentinel monitor %s %s %s %d", masterName, host, port, sentinelCount/2+1),
			fmt.Sprintf("sentinel down-after-milliseconds %s %d", masterName, downAfter.Milliseconds()),
			"sentinel failover-timeout " + masterName + " 2000", "",
		}, "\n"))
		s.args = []string{config, "--sentinel"}
		if s.start() == nil {
			t.Cleanup(s.Stop)
			return s.Addr
		}
		s.proc.kill()
	}
	t.Fatalf("redis-server --sentinel does not start:\n%s", s.out)
	return ""
}
