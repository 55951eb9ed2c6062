//go:build !linux

package machine

import "errors"

// ReadSpace returns errors.ErrUnsupported: other systems are not read.
func ReadSpace(string) (Space, error) { return Space{}, errors.ErrUnsupported }

// AllocatedBytes returns 0.
func AllocatedBytes(string) uint64 { return 0 }
