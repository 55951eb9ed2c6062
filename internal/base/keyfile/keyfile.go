package keyfile

import (
	"errors"
	"io/fs"
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
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(WriteIn(dir, filepath.Base(name), content), dir.Close())
}

// WriteIn is Write for the name of a file in dir. It follows no symbolic link.
func WriteIn(dir *os.Root, name string, content []byte) error {
	temp := name + Suffix
	if err := dir.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, dir.Remove(temp))
	}
	if err := dir.Rename(temp, name); err != nil {
		return errors.Join(err, dir.Remove(temp))
	}
	return SyncDir(dir)
}

// SyncDir makes a rename in dir last. Windows cannot sync a directory and does
// not need it.
func SyncDir(dir *os.Root) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Watch detects changes of files, because programs that renew a certificate do not
// notify its users. It belongs to one goroutine.
type Watch struct {
	names []string
	seen  []os.FileInfo // nil for a file that was not there
}

// NewWatch returns a watch that has seen the files as they are.
func NewWatch(names ...string) *Watch {
	w := &Watch{names: names}
	w.seen = w.look()
	return w
}

// Changed reports whether any of the files is another than at the last look.
// Renewing a pair changes two files, and reports two changes if a call falls between.
func (w *Watch) Changed() bool {
	files := w.look()
	changed := false
	for i := range files {
		changed = changed || !same(files[i], w.seen[i])
	}
	w.seen = files
	return changed
}

func (w *Watch) look() []os.FileInfo {
	files := make([]os.FileInfo, len(w.names))
	for i, name := range w.names {
		if info, err := os.Stat(name); err == nil {
			files[i] = info
		}
	}
	return files
}

// A link that leads elsewhere now is another file.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
