package keyfile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// Suffix ends the temporary name under which [Write] begins a file. What is
// there by that name is overwritten.
const Suffix = ".new"

// Write makes the file name with the given content, in the place of one that is
// there. After a crash the file is what it was before or has all of the
// content. Only its owner may read it. Of two writers of one name at once one
// may fail, so callers that expect some hold a lock.
func Write(name string, content []byte) error {
	temp := name + Suffix
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := os.Rename(temp, name); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(filepath.Dir(name))
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
