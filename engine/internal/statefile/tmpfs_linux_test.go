package statefile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestFullDisk runs on a file system of 256 KiB and a page for the counter, which a child mounts in its own
// namespaces, without privileges.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	cmd := testkit.ChildCommand("tmpfs " + t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) || strings.HasPrefix(string(out), "mount:") {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI must permit user namespaces: %v %s", err, out)
		}
		t.Skipf("no user namespaces to mount a small file system in: %v %s", err, out)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func tmpfsChild(dir string) {
	if err := syscall.Mount("ferry", dir, "tmpfs", 0, "size=260k"); err != nil {
		exit("mount:", err)
	}
	fillDisk(filepath.Join(dir, "reserved"), false, false)
	fillDisk(filepath.Join(dir, "faulting"), false, true)
	fillDisk(filepath.Join(dir, "unmapped"), true, false)
	for pages := 1; pages <= 80; pages += 1 + pages/20 {
		for _, unmapped := range []bool{false, true} {
			growDisk(dir, pages, unmapped)
		}
	}
	os.Exit(0)
}

func resize(dir string, pages int) {
	if err := syscall.Mount("ferry", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%dk", 4*pages)); err != nil {
		exit("remount:", err)
	}
}

// growDisk uses both files on a disk of so many pages, which is full at another place for
// each number, and then on a larger one, where the state file must become complete again.
func growDisk(dir string, pages int, unmapped bool) {
	where := fmt.Sprintf("%d pages, unmapped %v:", pages, unmapped)
	resize(dir, pages)
	cfg := Config{Path: filepath.Join(dir, "grows"), Capacity: 3000, Boot: 1, Machine: "up", Unmapped: unmapped}
	var reported []error
	cfg.OnError = func(err error) { reported = append(reported, err) }
	l, _, err := Open(cfg)
	if err != nil {
		exit(where, err)
	}
	sessions, err := OpenSessions(SessionsConfig{
		Path: filepath.Join(dir, "sessions"), Capacity: 1000, MaxAge: time.Hour, Machine: "up", Unmapped: unmapped,
	})
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		exit(where, err)
	}
	all := make([]Record, 2000)
	for i := range all {
		all[i] = Record{ID: proto.AllocationID{byte(i), byte(i >> 8), 1}, Tenant: 1}
		p := l.Add(&all[i])
		l.SetLinks(p, uint16(i), 0)
		sessions.SetSent(sessions.Add(&Session{Serial: uint64(i)}), 5)
	}
	stored := l.Storing()
	writeAnew := func() error {
		if stored {
			return nil
		}
		if err := l.Rewrite(len(all)); err != nil {
			return err
		}
		for i := range all {
			l.Add(&all[i])
		}
		for l.Rewriting() && !l.Complete() {
			runtime.Gosched()
		}
		return nil
	}
	if err := writeAnew(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		exit(where, "on the full disk:", err)
	}
	if stored != (len(reported) == 0) || !stored && !errors.Is(reported[0], syscall.ENOSPC) || len(reported) > 1 {
		exit(where, "stored", stored, "reported", reported)
	}
	resize(dir, 400)
	if err := writeAnew(); err != nil {
		exit(where, "with space:", err)
	}
	if l.Incomplete() || l.IsMapped() == unmapped && !stored {
		exit(where, "not complete with space; mapped", l.IsMapped())
	}
	if err := errors.Join(l.closeFiles(), sessions.Close()); err != nil { // as when it is killed
		exit(where, err)
	}
	cfg.Boot++
	l, left, err := Open(cfg)
	if err != nil || !left.Complete || len(left.Records) != len(all) {
		exit(where, "the next run:", err, left.Err, len(left.Records))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err = errors.Join(err, l.Close()); err != nil {
		exit(where, err)
	}
	for _, name := range files {
		_ = os.Remove(name)
	}
}

// fillDisk adds records until the disk is full. With faulting the state file
// assumes that it has space, as on a file system that reserves none.
func fillDisk(path string, unmapped, faulting bool) {
	cfg := Config{Path: path, Capacity: 100_000, Boot: 1, Unmapped: unmapped}
	var reported []error
	cfg.OnError = func(err error) { reported = append(reported, err) }
	l, _, err := Open(cfg)
	if err != nil || !l.Storing() || l.IsMapped() == unmapped {
		exit(path, err, reported)
	}
	if faulting {
		mapWithoutSpace(&l.disk)
	}
	added := 0
	for r := (Record{Tenant: 1}); l.Add(&r) != 0; added++ {
	}
	full := len(reported) == 1 && errors.Is(reported[0], syscall.ENOSPC)
	if faulting {
		var fault interface{ Addr() uintptr }
		full = len(reported) == 1 && errors.As(reported[0], &fault)
	}
	if !full || added < 3*chunkPlaces || added > 6*chunkPlaces {
		exit(path, "added", added, "reported", reported)
	}
	if err := l.Close(); err != nil {
		exit(path, err)
	}
	cfg.Boot, reported = 2, nil
	l, left, err := Open(cfg)
	if err != nil || len(left.Records) != added || !errors.Is(left.Err, ErrUnstored) || !l.Storing() {
		exit(path, err, len(left.Records), added, left.Err, reported)
	}
	if err := errors.Join(l.Close(), os.Remove(path), os.Remove(path+counterSuffix)); err != nil {
		exit(path, err)
	}
	openOnFullDisk(cfg, filepath.Join(filepath.Dir(path), "ballast"))
}

func mapWithoutSpace(d *disk) {
	size := int(fileSize(d.places))
	mapped, err := syscall.Mmap(int(d.source.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err == nil {
		err = d.unmap()
	}
	if err != nil {
		exit(err)
	}
	d.mapped, d.unmap = mapped, func() error { return syscall.Munmap(mapped) }
	for i := range d.reserved {
		d.reserved[i] = true
	}
}

func openOnFullDisk(cfg Config, ballast string) {
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		exit("ballast:", err)
	}
	var reported []error
	cfg.OnError = func(err error) { reported = append(reported, err) }
	l, left, err := Open(cfg)
	if err != nil || l.Storing() || left.Complete || len(reported) != 1 || !errors.Is(reported[0], syscall.ENOSPC) {
		exit("full:", err, reported, left)
	}
	if r := (Record{}); l.Add(&r) != 0 {
		exit("full: stored")
	}
	if _, err := os.Stat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
		exit("full: the file is still there:", err)
	}
	if err := errors.Join(l.Close(), os.Remove(ballast)); err != nil {
		exit("full:", err)
	}
}
