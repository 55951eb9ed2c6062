//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package state

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// takeLock locks the file at path until it is closed or the process ends. The file stays: removing it would let two processes lock two
// files of one name.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.EROFS) {
		// A relay must restart even if its disk has become read-only.
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("state: %s %w%s", path, ErrInUse, holder(f))
	} else if err != nil {
		err = fmt.Errorf("state: lock %s: %w", path, err)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	writeProcessID(f)
	return f, nil
}

// writeProcessID writes the process id into the lock file, for the error of another
// process. It ignores errors, since the lock does not need the id.
func writeProcessID(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
}

func holder(f *os.File) string {
	var text [32]byte
	n, err := f.Read(text[:])
	if err != nil {
		return "" // the id could not be written
	}
	return " with id " + strings.TrimSpace(string(text[:n]))
}
