package sock

import "golang.org/x/sys/unix"

// reserve gives the holes in the first size bytes of a file their room on the
// file system, if it can do that. What they hold does not change.
func reserve(fd int, size int64) (err error) {
	for range maxInterrupts {
		err = unix.Fallocate(fd, 0, 0, size)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return nil
	}
	return err
}
