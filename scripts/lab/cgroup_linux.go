package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoCgroup is returned by NewMemoryCap where no memory controller can be used.
var ErrNoCgroup = errors.New("lab: no cgroup with a memory controller can be made here")

// Places of the memory controller: v1 has a hierarchy for it, v2 one for all.
const (
	cgroup1 = "/sys/fs/cgroup/memory"
	cgroup2 = "/sys/fs/cgroup"
)

// MemoryCap is a control group that bounds the memory of what runs in it. It
// is immutable.
type MemoryCap struct {
	dir string
	v2  bool
}

// cgroupDirs are the control groups that this process may have made.
func cgroupDirs() []string {
	name := fmt.Sprintf("ferrylab-%d", os.Getpid())
	return []string{filepath.Join(cgroup1, name), filepath.Join(cgroup2, name)}
}

// NewMemoryCap makes a control group with a limit in bytes, of version 1 or 2,
// whichever there is. One exists at a time. It has to be removed.
func NewMemoryCap(limit int64) (MemoryCap, error) {
	dirs := cgroupDirs()
	m, knob := MemoryCap{dir: dirs[0]}, "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Join(cgroup1, knob)); err != nil {
		m, knob = MemoryCap{dir: dirs[1], v2: true}, "memory.max"
		have, err := os.ReadFile(filepath.Join(cgroup2, "cgroup.controllers"))
		if err != nil || !strings.Contains(string(have), "memory") {
			return MemoryCap{}, ErrNoCgroup
		}
		// Where it is on already, or may not be switched on, what follows tells.
		_ = os.WriteFile(filepath.Join(cgroup2, "cgroup.subtree_control"), []byte("+memory"), 0)
	}
	if err := os.Mkdir(m.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return MemoryCap{}, fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, knob), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		return MemoryCap{}, errors.Join(ErrNoCgroup, err, m.Remove())
	}
	return m, nil
}

// Add puts a process and all that it starts into the group.
func (m MemoryCap) Add(pid int) error {
	return os.WriteFile(filepath.Join(m.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// Kills returns how many processes of the group the kernel has killed.
func (m MemoryCap) Kills() (int, error) {
	file := "memory.oom_control"
	if m.v2 {
		file = "memory.events"
	}
	raw, err := os.ReadFile(filepath.Join(m.dir, file))
	if err != nil {
		return 0, err
	}
	return field(string(raw), "oom_kill")
}

// Peak returns the most memory in bytes that the group has used.
func (m MemoryCap) Peak() (int, error) {
	file := "memory.max_usage_in_bytes"
	if m.v2 {
		file = "memory.peak"
	}
	raw, err := os.ReadFile(filepath.Join(m.dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// Remove removes the group, in which nothing may run any more.
func (m MemoryCap) Remove() error { return os.Remove(m.dir) }

// field returns the number behind a name at the beginning of a line.
func field(text, name string) (int, error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 2 && strings.TrimSuffix(f[0], ":") == name {
			return strconv.Atoi(f[1])
		}
	}
	return 0, fmt.Errorf("lab: no %s in %q", name, text)
}
