package memory

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Limit is how much memory the process may use.
type Limit struct {
	Bytes int64  // 0: unknown
	From  string // "GOMEMLIMIT", "cgroup" or "machine"
}

// ReadLimit returns the least of the limits that hold: soft if that is not 0,
// those of the control groups, of version 1 or 2, that the process is in, and
// what the machine has. Root is the file system from "/" on, where Linux
// tells about all that; elsewhere nothing is found.
func ReadLimit(root fs.FS, soft int64) Limit {
	var least Limit
	for _, l := range []Limit{
		{soft, softEnv}, {cgroupLimit(root), "cgroup"}, {machineMemory(root), "machine"},
	} {
		if l.Bytes > 0 && (least.Bytes == 0 || l.Bytes < least.Bytes) {
			least = l
		}
	}
	return least
}

// softEnv is the variable by which the operator sets the limit of Go's runtime.
const softEnv = "GOMEMLIMIT"

// operatorsLimit returns what the operator set, 0 if nothing or "off". Set
// reports whether the variable is there: then the limit is not ours to change.
func operatorsLimit() (bytes int64, set bool) {
	if os.Getenv(softEnv) == "" {
		return 0, false
	}
	if bytes = debug.SetMemoryLimit(-1); bytes == math.MaxInt64 {
		return 0, true
	}
	return bytes, true
}

// unlimited is where the kernel's way to say "no limit" begins: version 1 shows
// the largest number of pages.
const unlimited = 1 << 60

// cgroupLimit returns the least limit of the control group of the process and
// of those above it, 0 if there is none. In a container the group's own path is
// often not there, but its directory is mounted at the top.
func cgroupLimit(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	var least int64
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		top, knob := "sys/fs/cgroup", "memory.max"
		if fields[1] != "" {
			top, knob = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		if fields[1] != "" && !contains(fields[1], "memory") {
			continue
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			bytes := number(root, path.Join(top, group, knob))
			if bytes > 0 && bytes < unlimited && (least == 0 || bytes < least) {
				least = bytes
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

func contains(list, name string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item == name {
			return true
		}
	}
	return false
}

// number returns the number in a file, 0 for any other content.
func number(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// machineMemory returns what the machine has, 0 if the system does not tell.
func machineMemory(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
