//go:build !linux

package upgrade

import (
	"errors"
	"net"
	"os"
)

func socketPair() (net.Conn, *os.File, error) { return nil, nil, errors.ErrUnsupported }

func inherited(int, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func checkOwner(string) error { return errors.ErrUnsupported }

// CheckParents is the one of Linux.
func CheckParents() error { return errors.ErrUnsupported }
