package state

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// errSharing is ERROR_SHARING_VIOLATION: another process has the file open.
const errSharing = syscall.Errno(32)

// takeLock opens the file at path so that no other process can until it is closed or
// the process has ended in any way.
func takeLock(path string) (*os.File, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	h, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errSharing) {
		return nil, fmt.Errorf("state: %s %w", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("state: lock %s: %w", path, err)
	}
	return os.NewFile(uintptr(h), path), nil
}
