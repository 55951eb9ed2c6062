package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Errors about a file or directory that another user may have planted, read or
// changed. Each is wrapped with the path and, where there is one, the command that
// mends it.
var (
	// ErrOwner: it belongs to another user, not to this one or root.
	ErrOwner = errors.New("belongs to another user")
	// ErrPermissions: others can read or change the file, or change the directory.
	ErrPermissions = errors.New("is open to other users")
	// ErrNotRegular: a symbolic link, a directory, a FIFO or a device.
	ErrNotRegular = errors.New("is not a regular file")
	// ErrHardLinks: the file has a second name, through which it can be changed.
	ErrHardLinks = errors.New("has other names (hard links)")
	// ErrReplaced: another process replaced the file while it was opened.
	ErrReplaced = errors.New("was replaced while it was opened")
)

// IsRefusal reports whether err is one of these errors, which last until the operator
// mends the directory.
func IsRefusal(err error) bool {
	for _, refusal := range []error{ErrOwner, ErrPermissions, ErrNotRegular, ErrHardLinks, ErrReplaced} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// OpenDir opens the directory at path. Only this user and root may be able to change its
// entries, and a group of this process if root owns the directory, as Kubernetes makes a
// volume. The path may be a symbolic link of this user or of root, which systemd makes
// for the directory of a dynamic user. Windows has no such owners and modes, so they are
// not checked there.
func OpenDir(path string) (*os.Root, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		if err := checkOwner(path, info); err != nil {
			return nil, err
		}
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	info, err = dir.Stat(".")
	if err == nil {
		err = errors.Join(checkOwner(path, info), checkDirMode(path, info))
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// Open opens a regular file that belongs to this user or root, has one name, and grants
// others nothing. With os.O_CREATE, a missing file is created with mode 0600. It never
// follows a symbolic link, opens nothing that is not a regular file, and changes nothing
// of a file that it refuses. flag must not have os.O_TRUNC.
func Open(dir *os.Root, name string, flag int) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	before, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0:
		flag |= os.O_EXCL // which does not follow a link either
	case err != nil:
		return nil, withPath(err, path)
	default:
		if err := checkFile(path, before); err != nil {
			return nil, err
		}
		flag &^= os.O_CREATE
	}
	f, err := dir.OpenFile(name, flag, 0o600)
	if errors.Is(err, fs.ErrPermission) && before != nil && !isOwn(before) {
		return nil, ownerError(path, before)
	}
	if err != nil {
		return nil, withPath(err, path)
	}
	after, err := f.Stat()
	if err == nil {
		err = checkFile(path, after)
	}
	if err == nil && before != nil && !os.SameFile(before, after) {
		// A link that took the place of the file was followed.
		err = fmt.Errorf("%s %w", path, ErrReplaced)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// withPath replaces the name in an error of dir by the whole path.
func withPath(err error, path string) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return &fs.PathError{Op: "open", Path: path, Err: pathError.Err}
	}
	return err
}

func checkFile(path string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%s %w but a symbolic link", path, ErrNotRegular)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s %w", path, ErrNotRegular)
	}
	if err := checkOwner(path, info); err != nil {
		return err
	}
	if n := names(info); n > 1 {
		return fmt.Errorf("%s %w; to give it one name: cp -p %s %s%s && mv %s%s %s", path, ErrHardLinks, path, path, Suffix, path, Suffix, path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return permissionsError(path, mode, mode&^0o077)
	}
	return nil
}

// checkDirMode returns ErrPermissions for a directory in which others can create,
// remove or rename files.
func checkDirMode(path string, info fs.FileInfo) error {
	mode := info.Mode().Perm()
	refused := mode & 0o022
	if grantedByRoot(info) {
		refused &^= 0o020
	}
	if refused == 0 || runtime.GOOS == "windows" {
		return nil
	}
	return permissionsError(path, mode, mode&^refused)
}

func permissionsError(path string, mode, want fs.FileMode) error {
	return fmt.Errorf("%s %w (mode %04o); to mend it: chmod %04o %s", path, ErrPermissions, mode, want, path)
}
