//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package sock

import "golang.org/x/sys/unix"

func lowerDescriptors(n uint64) error {
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n})
}
