package sock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMapFileFull: on a file system that is too small for the file, it is
// MapFile that says so, and no write to the mapping that kills the process.
func TestMapFileFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("ferry", dir, "tmpfs", 0, "size=64k"); err != nil {
		needRoot(t, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	f, err := os.Create(filepath.Join(dir, "mapped"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if mem, _, err := MapFile(f, 1<<20); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%d bytes, %v", len(mem), err)
	}
	mem, unmap, err := MapFile(f, 32<<10)
	if err != nil {
		t.Fatal(err)
	}
	clear(mem)
	if err := unmap(); err != nil {
		t.Error(err)
	}
}
