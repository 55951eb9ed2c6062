//go:build unix

package keyfile

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// root is the user id of the superuser, who can change every file.
const root = 0

func isOwn(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

func checkOwner(path string, info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); isOwn(info) || ok && st.Uid == root {
		return nil
	}
	return ownerError(path, info)
}

// ownerError does not advise a bare chown: the content may be another user's.
func ownerError(path string, info fs.FileInfo) error {
	var owner uint32
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = st.Uid
	}
	return fmt.Errorf("%s %w (%d, and this process runs as %d): run it as that user, or if you trust the content: chown %d %s",
		path, ErrOwner, owner, os.Geteuid(), os.Geteuid(), path)
}

func names(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) // The type differs by system.
	}
	return 1
}

// grantedByRoot reports whether a directory belongs to root and to a group of this
// process.
func grantedByRoot(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid != root {
		return false
	}
	groups, _ := os.Getgroups()
	return int(st.Gid) == os.Getegid() || slices.Contains(groups, int(st.Gid))
}
