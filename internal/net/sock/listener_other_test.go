//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package sock

import "errors"

func lowerDescriptors(uint64) error { return errors.ErrUnsupported }
