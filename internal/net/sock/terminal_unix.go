//go:build unix

package sock

import (
	"os"

	"golang.org/x/sys/unix"
)

// TerminalWidth returns the columns of a terminal. False: f is none.
func TerminalWidth(f *os.File) (int, bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
