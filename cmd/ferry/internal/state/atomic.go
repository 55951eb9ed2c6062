package state

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// writeAtomic makes the file name in dir with the given content: after a crash
// it is there with all of it, or not there. The temporary name temp is
// overwritten. The caller holds the lock of dir.
func writeAtomic(dir, temp, name string, content []byte) error {
	from := filepath.Join(dir, temp)
	if err := os.RemoveAll(from); err != nil {
		return err
	}
	f, err := os.OpenFile(from, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(from))
	}
	if err := os.Rename(from, filepath.Join(dir, name)); err != nil {
		return errors.Join(err, os.Remove(from))
	}
	return syncDir(dir)
}

// syncDir makes a rename in dir last. Windows cannot sync a directory and does
// not need it.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
