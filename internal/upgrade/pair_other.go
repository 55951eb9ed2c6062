//go:build !unix

package upgrade

import (
	"errors"
	"net"
	"os"
	"syscall"
)

func socketPair() (net.Conn, *os.File, error) { return nil, nil, errors.ErrUnsupported }

// Dup exists on Unix only.
func Dup(syscall.Conn, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func inherited(int, string) (*os.File, error) { return nil, errors.ErrUnsupported }
