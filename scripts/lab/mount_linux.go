package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

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
