//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package state

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// takeLock locks the file at path until it is closed or the process ends,
// however it ends. The file stays: removing it would let two processes lock two
// files of one name.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("state: %s %w%s", path, ErrInUse, holder(f))
	} else if err != nil {
		err = fmt.Errorf("state: lock %s: %w", path, err)
	}
	if err == nil {
		err = leaveName(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// leaveName writes the process id into the lock, for whoever finds it held.
func leaveName(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if _, err := fmt.Fprintf(f, "%d\n", os.Getpid()); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

func holder(f *os.File) string {
	var text [32]byte
	n, err := f.Read(text[:])
	if err != nil {
		return ""
	}
	return " with id " + strings.TrimSpace(string(text[:n]))
}
