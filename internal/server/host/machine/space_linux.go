package machine

import (
	"os"
	"syscall"
)

// ReadSpace returns the space on the file system of a directory.
func ReadSpace(dir string) (Space, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Space{}, err
	}
	return Space{Bytes: st.Bavail * uint64(st.Bsize), Inodes: st.Ffree, CountsInodes: st.Files > 0}, nil
}

// blockBytes is the unit of st_blocks, whatever the file system.
const blockBytes = 512

// AllocatedBytes returns what the files in a directory occupy, as far as it may be read: state files are sparse.
func AllocatedBytes(dir string) (n uint64) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // It was removed since.
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() {
			n += uint64(st.Blocks) * blockBytes
		}
	}
	return n
}
