//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd

package sock

import (
	"errors"
	"fmt"
	"os"
)

// MapFile exists on Linux, macOS and the BSDs only; elsewhere it returns
// errors.ErrUnsupported.
func MapFile(f *os.File, _ int) (mem []byte, unmap func() error, err error) {
	return nil, nil, fmt.Errorf("sock: map %s: %w", f.Name(), errors.ErrUnsupported)
}
