package machine

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Processors are the limits of the processor time of this process.
type Processors struct {
	// Online is the number of logical CPUs of the machine, 0 if unknown.
	Online int
	// Allowed are the CPUs on which the process may run, in ascending order; empty: unknown.
	Allowed []int
	// Quota is the processor time that the cgroup of the process and those above it
	// grant, in processors; 0 without a limit.
	Quota float64
}

// ReadProcessors reads the limits of processor time. Root is the file system from "/" on.
func ReadProcessors(root fs.FS) Processors {
	online, _ := ParseCPUs(text(root, "sys/devices/system/cpu/online"))
	return Processors{Online: len(online), Allowed: allowed(root), Quota: quota(root)}
}

// Equal reports whether the limits are the same.
func (p Processors) Equal(q Processors) bool {
	return p.Online == q.Online && p.Quota == q.Quota && slices.Equal(p.Allowed, q.Allowed)
}

// minWorkers is the number of processors that Go uses at least on a machine that has
// them, whatever the quota: with one, nothing else would run while a collection does.
const minWorkers = 2

// Limit returns the lesser of n and the number of whole processors in the quota, which is
// rounded up and at least 2, by the rule of Go. Go reads the quota of the
// process's own cgroup only, and one above it may be lower.
func (p Processors) Limit(n int) int {
	if p.Quota <= 0 {
		return n
	}
	return min(n, max(minWorkers, int(math.Ceil(p.Quota))))
}

// String names the limit that determines the number of processors.
func (p Processors) String() string {
	switch {
	case p.Online == 0:
		return "Go counts these processors"
	case p.Quota > 0 && p.Quota < float64(max(1, len(p.Allowed))):
		return fmt.Sprintf("the CPU quota of the cgroup is %s of %d processors",
			strconv.FormatFloat(p.Quota, 'f', -1, 64), p.Online)
	case len(p.Allowed) > 0 && len(p.Allowed) < p.Online:
		return fmt.Sprintf("the process may run on %d of %d processors", len(p.Allowed), p.Online)
	case p.Online == 1:
		return "the machine has one processor"
	}
	return fmt.Sprintf("the machine has %d processors, and no limit is set", p.Online)
}

func allowed(root fs.FS) []int {
	for line := range strings.Lines(text(root, "proc/self/status")) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			cpus, _ := ParseCPUs(strings.TrimSpace(list))
			return cpus
		}
	}
	return nil
}

// quota returns the least quota of the cgroup of the process and of those above it, in
// processors. In a container the path of the group often does not exist: its directory is
// mounted at the top.
func quota(root fs.FS) (least float64) {
	for line := range strings.Lines(text(root, "proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		var tops []string
		read := quotaV1
		switch controllers := strings.Split(fields[1], ","); {
		case fields[1] == "":
			tops, read = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}, quotaV2
		case slices.Contains(controllers, "cpu"):
			tops = []string{"sys/fs/cgroup/" + fields[1], "sys/fs/cgroup/cpu"}
		}
		for _, top := range tops {
			for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
				if q := read(root, path.Join(top, group)); q > 0 && (least == 0 || q < least) {
					least = q
				}
				if group == "/" {
					break
				}
			}
		}
	}
	return least
}

// quotaV2 reads cpu.max: the quota and the period in microseconds, or max and the period.
func quotaV2(root fs.FS, dir string) float64 {
	fields := strings.Fields(text(root, path.Join(dir, "cpu.max")))
	if len(fields) != 2 {
		return 0
	}
	return ratio(fields[0], fields[1])
}

// quotaV1 reads the two files of version 1, in microseconds; the quota is -1 for none.
func quotaV1(root fs.FS, dir string) float64 {
	return ratio(text(root, path.Join(dir, "cpu.cfs_quota_us")), text(root, path.Join(dir, "cpu.cfs_period_us")))
}

func ratio(quota, period string) float64 {
	q, err := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0
	}
	return q / p
}
