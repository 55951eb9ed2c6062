package memory

import (
	"io/fs"
	"iter"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/internal/server/host/machine"
)

type Limit struct {
	Bytes int64  // 0: unknown
	From  string // "GOMEMLIMIT", "cgroup" or "machine"
}

// ReadLimit returns the least of soft if that is not 0, the limits of the control groups, of
// version 1 or 2, that the process is in, and what the machine has. Root is the file
// system from "/" on; on other systems than Linux nothing is found.
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

const softEnv = "GOMEMLIMIT"

// operatorsLimit returns 0 for nothing or "off". Set reports whether the variable is there:
// then the limit is not ours to change.
func operatorsLimit() (bytes int64, set bool) {
	if os.Getenv(softEnv) == "" {
		return 0, false
	}
	if bytes = debug.SetMemoryLimit(-1); bytes == math.MaxInt64 {
		return 0, true
	}
	return bytes, true
}

// unlimited is where "no limit" begins: version 1 shows the largest number of pages.
const unlimited = 1 << 60

// cgroupLimit returns the least limit of the group of the process and of those above it, or 0.
func cgroupLimit(root fs.FS) (least int64) {
	for g := range controlGroups(root) {
		if least == 0 || g.limit < least {
			least = g.limit
		}
	}
	return least
}

type controlGroup struct {
	dir   string
	v1    bool
	limit int64
}

// controlGroups returns those with a limit that the process is in.
func controlGroups(root fs.FS) iter.Seq[controlGroup] {
	return func(yield func(controlGroup) bool) {
		for dir, v1 := range machine.ControlGroups(root, "memory") {
			knob := "memory.max"
			if v1 {
				knob = "memory.limit_in_bytes"
			}
			bytes, _ := machine.Number(root, path.Join(dir, knob))
			if bytes > 0 && bytes < unlimited && !yield(controlGroup{dir, v1, bytes}) {
				return
			}
		}
	}
}

// room returns how many bytes the group may still take: what the kernel can drop counts as free.
func (g controlGroup) room(root fs.FS) int64 {
	usage, droppable := "memory.current", []string{"inactive_file", "active_file", "slab_reclaimable"}
	if g.v1 {
		usage, droppable = "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
	}
	used, _ := machine.Number(root, path.Join(g.dir, usage))
	room := g.limit - used
	for line := range strings.Lines(machine.Text(root, path.Join(g.dir, "memory.stat"))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && slices.Contains(droppable, name) {
			room += n
		}
	}
	return room
}

// Room returns how many bytes this process and those that it starts may still take together.
// From is empty if that is not known. A limit of Go's runtime is each process's own.
func Room() Limit { return readRoom(rootFS()) }

func readRoom(root fs.FS) (least Limit) {
	if n, ok := meminfo(root, "MemAvailable:"); ok {
		least = Limit{n, "machine"}
	}
	for g := range controlGroups(root) {
		if room := g.room(root); least.From == "" || room < least.Bytes {
			least = Limit{room, "cgroup"}
		}
	}
	return least
}

// machineMemory returns 0 if the system does not tell.
func machineMemory(root fs.FS) int64 {
	n, _ := meminfo(root, "MemTotal:")
	return n
}

func meminfo(root fs.FS, name string) (bytes int64, ok bool) {
	for line := range strings.Lines(machine.Text(root, "proc/meminfo")) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == name && fields[2] == "kB" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}
