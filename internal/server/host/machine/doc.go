// Package machine reads what a machine offers to a relay: processors and their limits,
// the receive queues and interrupts of its network interfaces, NUMA nodes, the limits
// of sockets and the space of file systems; and it says what to change.
//
// All of it comes from /proc and /sys, through an fs.FS from "/" on. What a file system
// does not have, as outside Linux, is unknown, which is no error.
package machine

import (
	"io/fs"
	"strconv"
	"strings"
)

// Text returns the content of a file without surrounding space, "" if it cannot be read.
func Text(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Number returns the whole number that is all of a file, false if there is none.
func Number(root fs.FS, name string) (int64, bool) {
	n, err := strconv.ParseInt(Text(root, name), 10, 64)
	return n, err == nil
}
