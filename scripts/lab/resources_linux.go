package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoCgroup is returned by NewMemoryCap if no memory controller is available.
var ErrNoCgroup = errors.New("lab: no cgroup with a memory controller can be made here")

// Mount points of the memory controller: cgroup v1 has a hierarchy per
// controller, v2 has one for all.
const (
	cgroup1 = "/sys/fs/cgroup/memory"
	cgroup2 = "/sys/fs/cgroup"
)

// MemoryCap is a control group that limits the memory of its processes. It is
// immutable.
type MemoryCap struct {
	dir string
	v2  bool
}

// cgroupDirs returns the paths of the control groups that this process may have
// created.
func cgroupDirs() []string {
	name := fmt.Sprintf("ferrylab-%d", os.Getpid())
	return []string{filepath.Join(cgroup1, name), filepath.Join(cgroup2, name)}
}

// NewMemoryCap creates a control group (v1 or v2) with a limit in bytes. A
// process can have one at a time. The caller removes it with Remove. Errors
// wrap ErrNoCgroup.
func NewMemoryCap(limit int64) (MemoryCap, error) {
	dirs := cgroupDirs()
	m, knob := MemoryCap{dir: dirs[0]}, "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Join(cgroup1, knob)); err != nil {
		m, knob = MemoryCap{dir: dirs[1], v2: true}, "memory.max"
		have, err := os.ReadFile(filepath.Join(cgroup2, "cgroup.controllers"))
		if err != nil || !strings.Contains(string(have), "memory") {
			return MemoryCap{}, ErrNoCgroup
		}
		// If this fails, writing the limit below fails too.
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

// Add moves a process into the group; its future children start there.
func (m MemoryCap) Add(pid int) error {
	return os.WriteFile(filepath.Join(m.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// Kills returns how many processes of the group the OOM killer has ended.
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

// Peak returns the peak memory use of the group in bytes.
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

// Remove deletes the group, which must have no running process.
func (m MemoryCap) Remove() error { return os.Remove(m.dir) }

// field returns the number that follows name at the start of a line.
func field(text, name string) (int, error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 2 && strings.TrimSuffix(f[0], ":") == name {
			return strconv.Atoi(f[1])
		}
	}
	return 0, fmt.Errorf("lab: no %s in %q", name, text)
}

// PrivateDisk mounts a tmpfs of size bytes at dir in a new mount namespace of
// the calling thread. It must be called on a thread that ends with the process
// it starts, as RelayConfig.Prepare is. The mount ends with the last process in
// that namespace.
func PrivateDisk(dir string, size int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size))
	return os.NewSyscallError("mount", err)
}

// ReadOnly remounts the file system of PrivateDisk read-only.
func ReadOnly(dir string) error {
	return os.NewSyscallError("mount", unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// FillDisk writes a file into dir until the file system is full, and returns
// the file's name.
func FillDisk(dir string) (name string, err error) {
	name = filepath.Join(dir, "filler")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return name, err
	}
	for piece := make([]byte, 4096); err == nil; {
		_, err = f.Write(piece)
	}
	if errors.Is(err, unix.ENOSPC) {
		err = nil
	}
	return name, errors.Join(err, f.Close())
}

const (
	// wakeInterval is how long each watcher sleeps.
	wakeInterval = 5 * time.Millisecond
	// stallThreshold is the delay of a watcher's wake-up from which its processor
	// counts as stalled.
	stallThreshold = 40 * time.Millisecond
)

// Stalls records when a processor of this machine did not run this process, for
// example because the hypervisor took it away. One goroutine per processor
// sleeps and measures how late it wakes up. Its methods may be called while Run
// runs.
type Stalls struct {
	mu        sync.Mutex  // guards the following fields
	lastWakes []time.Time // by watcher; zero: it has ended
	last      time.Time   // when the last stall that is over ended
	total     time.Duration
}

// NewStalls returns a Stalls. Run records.
func NewStalls() *Stalls { return &Stalls{} }

// Run records stalls until ctx is done.
func (s *Stalls) Run(ctx context.Context) {
	var set unix.CPUSet
	// Without the list of processors no stall is recorded.
	_ = unix.SchedGetaffinity(0, &set)
	// More threads, so that watchers do not wait for other goroutines of this process.
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(procs + set.Count())
	defer runtime.GOMAXPROCS(procs)
	var watchers sync.WaitGroup
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			watchers.Go(func() { s.watch(ctx, cpu) })
		}
	}
	watchers.Wait()
}

// watch measures the wake-ups on one processor.
func (s *Stalls) watch(ctx context.Context, cpu int) {
	runtime.LockOSThread() // Never unlocked: the thread ends with this goroutine.
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
	s.mu.Lock()
	me := len(s.lastWakes)
	s.lastWakes = append(s.lastWakes, time.Now())
	s.mu.Unlock()
	pause := unix.NsecToTimespec(int64(wakeInterval))
	for ctx.Err() == nil {
		_ = unix.Nanosleep(&pause, nil) // On this thread, and so on this processor.
		s.recordWake(me)
	}
	s.mu.Lock()
	s.lastWakes[me] = time.Time{}
	s.mu.Unlock()
}

func (s *Stalls) recordWake(me int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if late := now.Sub(s.lastWakes[me]); late > stallThreshold {
		s.last = now
		s.total += late
	}
	s.lastWakes[me] = now
}

// Since reports whether any processor was stalled after moment, or is stalled
// now.
func (s *Stalls) Since(moment time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.lastWakes {
		if !at.IsZero() && time.Since(at) > stallThreshold {
			return true
		}
	}
	return s.last.After(moment)
}

// Total returns the sum of the durations of all stalls.
func (s *Stalls) Total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}
