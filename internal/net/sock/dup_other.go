//go:build !unix

package sock

import (
	"errors"
	"os"
	"syscall"
)

// Dup exists on Unix only; elsewhere it returns errors.ErrUnsupported.
func Dup(syscall.Conn, string) (*os.File, error) { return nil, errors.ErrUnsupported }
