package blackbox

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

type cpuGroup struct {
	dir  string
	file string // of the quota
	v2   bool
}

// newCPUGroup creates a group of version 2 or 1, and removes it after the test. It skips the
// test if the machine does not permit one.
func newCPUGroup(t *testing.T) *cpuGroup {
	t.Helper()
	name := fmt.Sprintf("ferry-test-%d", os.Getpid())
	var why []error
	for _, g := range []cpuGroup{
		{filepath.Join("/sys/fs/cgroup", name), "cpu.max", true},
		{filepath.Join("/sys/fs/cgroup/unified", name), "cpu.max", true},
		{filepath.Join("/sys/fs/cgroup/cpu,cpuacct", name), "cpu.cfs_quota_us", false},
		{filepath.Join("/sys/fs/cgroup/cpu", name), "cpu.cfs_quota_us", false},
	} {
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			why = append(why, err)
			continue
		}
		if _, err := os.Stat(filepath.Join(g.dir, g.file)); err != nil {
			why = append(why, err, os.Remove(g.dir))
			continue
		}
		// A group can be removed when its last process is gone, which launch ends before.
		t.Cleanup(func() {
			if !testkit.Poll(10*time.Second, func() bool { return os.Remove(g.dir) == nil }) {
				t.Errorf("%s cannot be removed", g.dir)
			}
		})
		return &g
	}
	t.Skip("NOT TESTED with a CPU quota: no control group can be made: ", why)
	return nil
}

// set grants whole processors; 0 removes the quota.
func (g *cpuGroup) set(t *testing.T, processors int) {
	t.Helper()
	const period = 100_000 // µs, the kernel's default
	quota := fmt.Sprint(processors * period)
	switch {
	case processors == 0 && g.v2:
		quota = "max"
	case processors == 0:
		quota = "-1"
	}
	if err := os.WriteFile(filepath.Join(g.dir, g.file), []byte(quota), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestCPUQuota runs the relay in a control group with one processor of this machine, which
// it must count instead of the machine's, and then removes the quota.
func TestCPUQuota(t *testing.T) {
	t.Parallel()
	n := runtime.NumCPU()
	if n < 2 {
		t.Skip("NOT TESTED with a CPU quota: the machine has one processor")
	}
	group := newCPUGroup(t)
	group.set(t, 1)
	join := fmt.Sprintf(`echo $$ >%s/cgroup.procs && exec "$0" "$@"`, group.dir)
	f := launchBy(t, []string{"/bin/sh", "-c", join}, "dev")
	t.Cleanup(f.Stop)
	// Two is the least that Go uses, whatever the quota.
	logged := func(want string) {
		t.Helper()
		testkit.Within(t, 60*time.Second, want, func() bool { return strings.Contains(f.Log.String(), want) })
	}
	logged("workers=2 workers_of_all_addresses=2 gomaxprocs=4 because=")
	logged("workers=2 intakes=2")
	group.set(t, 0)
	logged(fmt.Sprintf("gomaxprocs=%d workers=2 because=", max(4, n)))
}
