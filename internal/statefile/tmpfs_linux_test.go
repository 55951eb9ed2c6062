package statefile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFullDisk runs on a file system of 256 KiB and a page for the counter, which a child mounts in its own
// namespaces, without privileges.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), tmpfsEnv+"="+t.TempDir())
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
	os.Exit(0)
}

// fillDisk adds records until the disk is full. With faulting the state file
// assumes that it has space, as on a file system that reserves none.
func fillDisk(path string, unmapped, faulting bool) {
	cfg := Config{Path: path, Capacity: 100_000, Boot: 1, Unmapped: unmapped}
	var reported []error
	cfg.OnError = func(err error) { reported = append(reported, err) }
	l, _, err := Open(cfg)
	if err != nil || !l.Storing() || l.Mapped() == unmapped {
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

// mapWithoutSpace maps the whole file without disk space.
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

// openOnFullDisk opens a state file on a disk without space for the header.
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
