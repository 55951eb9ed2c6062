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

// PrivateDisk gives the calling thread, and what it starts, a file system of
// its own at dir, in memory, of so many bytes. It must be called on a thread
// that ends with its purpose, such as that of RelayConfig.Prepare; the file
// system ends with the last process that has it.
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

// ReadOnly makes the file system of PrivateDisk read-only.
func ReadOnly(dir string) error {
	return os.NewSyscallError("mount", unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// FillDisk writes a file into dir until the file system is full, and returns
// the name of it.
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
	// beatEvery is how often each processor is looked at.
	wakeInterval = 5 * time.Millisecond
	// stallFrom is how late a look may be before its processor passes for one
	// that stood still.
	stallThreshold = 40 * time.Millisecond
)

// Stalls records when the hypervisor took a processor of this machine, by its
// hypervisor or by others: one goroutine for each sleeps there and sees how late
// it wakes up. Its methods may be called while Run runs.
type Stalls struct {
	mu        sync.Mutex  // guards the following fields
	lastWakes []time.Time // the last one of each processor
	last      time.Time   // when the last stall that is over ended
	total     time.Duration
}

// NewStalls returns a Stalls that records from Run on.
func NewStalls() *Stalls { return &Stalls{} }

// Run watches until ctx ends.
func (s *Stalls) Run(ctx context.Context) {
	var set unix.CPUSet
	// Without a list there is no record, and no failure is excused.
	_ = unix.SchedGetaffinity(0, &set)
	// A watcher that waits for its turn in this process would be late for nothing.
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

// watch looks at one processor.
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

// Since reports whether a processor has stood still at any time after a moment,
// or does so now.
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

// Total is for how long processors have stood still, added up.
func (s *Stalls) Total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}
