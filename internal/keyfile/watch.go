package keyfile

import "os"

// Watch tells when files have changed: programs that renew a certificate know
// nothing of its users. It belongs to one goroutine.
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
// Who renews a pair changes it twice, and is seen twice if a look falls between.
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

// same reports whether a file is as it was. A link that leads elsewhere now is
// another file.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
