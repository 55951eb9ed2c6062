//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

// maxLock is the size in bytes of the longest lock file that Ferry writes, with room.
const maxLock = 32

// takeLock locks the lock file of dir until it is closed or the process ends. The file
// stays: removing it would let two processes lock two files of one name. If held is the
// locked file of another process, it is returned.
func takeLock(dir *os.Root, held *os.File) (*os.File, error) {
	if held != nil {
		return takeHeld(dir, held)
	}
	f, err := keyfile.Open(dir, lockName, os.O_RDWR|os.O_CREATE)
	if errors.Is(err, syscall.EROFS) {
		// A relay must restart even if its disk has become read-only.
		f, err = keyfile.Open(dir, lockName, os.O_RDONLY)
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("state: %s %w%s", f.Name(), ErrInUse, holder(f))
	} else if err != nil {
		err = fmt.Errorf("state: lock %s: %w", f.Name(), err)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	writeProcessID(f)
	return f, nil
}

func takeHeld(dir *os.Root, held *os.File) (*os.File, error) {
	has, err := held.Stat()
	if err == nil {
		var want os.FileInfo
		want, err = dir.Lstat(lockName)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(has, want) {
			err = errors.New("is not the lock of the process before this one")
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state: %s: %w", lockName, err), held.Close())
	}
	return held, nil
}

// writeProcessID writes the process id into the lock file, for the error of another
// process. It ignores errors, since the lock does not need the id. A larger file was not
// written by Ferry and is left as it is.
func writeProcessID(f *os.File) {
	if info, err := f.Stat(); err == nil && info.Size() <= maxLock && f.Truncate(0) == nil {
		_, _ = f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0) // An inherited file is read already.
	}
}

func holder(f *os.File) string {
	var text [maxLock]byte
	n, err := f.Read(text[:])
	if err != nil {
		return "" // the id could not be written
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" with id %d", id)
}
