//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package state

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// takeLock refuses: two processes with one identity would hand out the same
// keys, and here nothing would keep them apart.
func takeLock(dir *os.Root, _ *os.File) (*os.File, error) {
	return nil, fmt.Errorf("state: lock %s: %w on %s", dir.Name(), errors.ErrUnsupported, runtime.GOOS)
}

// writeProcessID does nothing: the error of another process names no id.
func writeProcessID(*os.File) {}
