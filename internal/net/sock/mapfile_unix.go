//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package sock

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// MapFile maps the first size bytes of f into memory, to read and to write, and
// shared: every process of this machine sees a write to mem in the file at once, also
// after this process has crashed. Only a crash of the machine loses writes.
//
// f must be open for reading and writing and have size bytes or more; it must
// keep them, and mem must not be touched after unmap: either kills the process.
// So does a file system that runs full under a file with holes; on Linux MapFile
// reserves their room first, or returns ENOSPC. f may be closed at once. unmap may
// be called several times. The error wraps ErrConfig for a size below 1,
// io.ErrUnexpectedEOF for a shorter file, and errors.ErrUnsupported on systems
// without mappings.
func MapFile(f *os.File, size int) (mem []byte, unmap func() error, err error) {
	if size < 1 {
		return nil, nil, fmt.Errorf("%w: a mapping of %d bytes", ErrConfig, size)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if info.Size() < int64(size) {
		return nil, nil, fmt.Errorf("sock: map %d bytes of %s, which has %d: %w", size, f.Name(), info.Size(), io.ErrUnexpectedEOF)
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var mapErr error
	err = rc.Control(func(fd uintptr) { mem, mapErr = mapDescriptor(int(fd), size) })
	if err == nil {
		err = mapErr
	}
	if err != nil {
		return nil, nil, fmt.Errorf("sock: map %s: %w", f.Name(), err)
	}
	return mem, sync.OnceValue(func() error { return os.NewSyscallError("munmap", unix.Munmap(mem)) }), nil
}

func mapDescriptor(fd, size int) ([]byte, error) {
	if err := reserve(fd, int64(size)); err != nil {
		return nil, os.NewSyscallError("fallocate", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}
