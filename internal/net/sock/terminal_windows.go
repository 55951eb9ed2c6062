package sock

import (
	"os"

	"golang.org/x/sys/windows"
)

// TerminalWidth returns the columns of a terminal, which it makes take the sequences of ECMA-48: a
// console does not by itself. False: f is none, or does not know them (before Windows 10).
func TerminalWidth(f *os.File) (int, bool) {
	console := windows.Handle(f.Fd())
	var info windows.ConsoleScreenBufferInfo
	var mode uint32
	if windows.GetConsoleScreenBufferInfo(console, &info) != nil || windows.GetConsoleMode(console, &mode) != nil ||
		windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) != nil {
		return 0, false
	}
	return int(info.Window.Right - info.Window.Left + 1), true
}
