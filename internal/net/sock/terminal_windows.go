package sock

import (
	"os"

	"golang.org/x/sys/windows"
)

// TerminalWidth returns the columns of a terminal. False: f is none.
func TerminalWidth(f *os.File) (int, bool) {
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &info) != nil {
		return 0, false
	}
	return int(info.Window.Right - info.Window.Left + 1), true
}
