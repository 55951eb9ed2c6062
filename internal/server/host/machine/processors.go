package machine

import (
	"fmt"
	"io/fs"
	"iter"
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
	online, _ := ParseCPUs(Text(root, "sys/devices/system/cpu/online"))
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
	for line := range strings.Lines(Text(root, "proc/self/status")) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			cpus, _ := ParseCPUs(strings.TrimSpace(list))
			return cpus
		}
	}
	return nil
}

// quota returns the least quota of the cgroup of the process and of those above it, in processors.
func quota(root fs.FS) (least float64) {
	for dir, v1 := range ControlGroups(root, "cpu") {
		read := quotaV2
		if v1 {
			read = quotaV1
		}
		if q := read(root, dir); q > 0 && (least == 0 || q < least) {
			least = q
		}
	}
	return least
}

// ControlGroups returns the directories of the cgroups of the process that have a controller, and of
// those above, and whether they are of version 1. In a container the path of the group often does not
// exist: its directory is mounted at the top.
func ControlGroups(root fs.FS, controller string) iter.Seq2[string, bool] {
	return func(yield func(dir string, v1 bool) bool) {
		for line := range strings.Lines(Text(root, "proc/self/cgroup")) {
			fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(fields) != 3 {
				continue
			}
			v1, tops := fields[1] != "", []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
			if v1 && !slices.Contains(strings.Split(fields[1], ","), controller) {
				continue
			}
			if v1 {
				tops = []string{"sys/fs/cgroup/" + fields[1], "sys/fs/cgroup/" + controller}
			}
			for _, top := range tops {
				for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
					if !yield(path.Join(top, group), v1) {
						return
					}
					if group == "/" {
						break
					}
				}
			}
		}
	}
}

// quotaV2 reads cpu.max: the quota and the period in microseconds, or max and the period.
func quotaV2(root fs.FS, dir string) float64 {
	fields := strings.Fields(Text(root, path.Join(dir, "cpu.max")))
	if len(fields) != 2 {
		return 0
	}
	return ratio(fields[0], fields[1])
}

// quotaV1 reads the two files of version 1, in microseconds; the quota is -1 for none.
func quotaV1(root fs.FS, dir string) float64 {
	return ratio(Text(root, path.Join(dir, "cpu.cfs_quota_us")), Text(root, path.Join(dir, "cpu.cfs_period_us")))
}

func ratio(quota, period string) float64 {
	q, err := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0
	}
	return q / p
}
