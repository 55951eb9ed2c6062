package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// errSharing is ERROR_SHARING_VIOLATION: another process has the file open.
const errSharing = syscall.Errno(32)

// takeLock opens the lock file of dir so that no other process can until it is closed or
// the process has ended in any way. It writes nothing, and does not follow a link.
func takeLock(dir *os.Root, _ *os.File) (*os.File, error) {
	path := filepath.Join(dir.Name(), lockName)
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	h, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL|syscall.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if errors.Is(err, errSharing) {
		return nil, fmt.Errorf("state: %s %w", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("state: lock %s: %w", path, err)
	}
	return os.NewFile(uintptr(h), path), nil
}

func writeProcessID(*os.File) {}
