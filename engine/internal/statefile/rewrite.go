package statefile

import (
	"errors"
	"path/filepath"
	"syscall"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

// A file that lacks changes cannot be mended: the owner writes it anew from its own memory. The
// new file lies beside the old one until it has every record and the disk has it.

type rewrite struct {
	synced chan error // the result of the sync; nil: it has not begun
}

// Incomplete reports whether the file lacks changes, so that it should be written anew.
func (l *File) Incomplete() bool {
	return l != nil && !l.closed && (l.off || l.overflowed || l.rewrite != nil)
}

// Rewriting reports whether a new file is being written.
func (l *File) Rewriting() bool { return l != nil && l.rewrite != nil }

// Discard declares the file incomplete.
func (l *File) Discard(why error) {
	if l != nil && !l.Incomplete() {
		l.fail(why)
	}
}

// Rewrite begins a new file with disk space for so many records. All places are void. The caller
// adds every record again, between other changes, and then calls Complete until that reports true.
// If Rewrite or a later change fails, Rewriting reports false, and the caller may begin again.
// Neither calls OnError.
func (l *File) Rewrite(records int) error {
	if !l.Incomplete() || l.rewrite != nil {
		return nil
	}
	if records > l.cfg.Capacity-l.cfg.Capacity/8 {
		return ErrFull
	}
	l.off, l.rewrite = false, new(rewrite)
	if err := l.startRewrite(records); err != nil {
		l.fail(err)
		return err
	}
	return nil
}

func (l *File) startRewrite(records int) error {
	_ = l.disk.close() // The old file stays as it is, marked or removed.
	name := filepath.Base(l.cfg.Path)
	_ = l.counter.close() // Somebody may have removed it to make room.
	var err error
	if l.counter, err = openCounter(l.dir, name, l.cfg.Relay); err != nil {
		return err
	}
	l.count = max(l.count, l.counter.found)
	_ = l.dir.Remove(name + keyfile.Suffix)
	f, _, err := openFile(l.dir, name+keyfile.Suffix)
	if err != nil {
		return err
	}
	l.disk = disk{file: f, places: l.cfg.Capacity}
	l.free = newFreePlaces(l.cfg.Capacity)
	l.head.capacity, l.head.state, l.head.closed = l.cfg.Capacity, 0, 0
	l.overflowed = false
	if err := f.Truncate(fileSize(l.disk.places)); err != nil {
		return err
	}
	if err := l.writePage(); err != nil {
		return err
	}
	if err := l.counter.start(l.count, !l.cfg.Unmapped); err != nil {
		return err
	}
	if !l.cfg.Unmapped {
		if err := l.disk.startMapping(f, records); errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return err
		}
	}
	return nil
}

// Complete puts the new file, which has every record, in the place of the old one when the disk
// has it. It does not wait for the disk, and reports false until then.
func (l *File) Complete() bool {
	if !l.Rewriting() {
		return false
	}
	w := l.rewrite
	if w.synced == nil {
		w.synced = make(chan error, 1)
		go func(f file) { w.synced <- f.Sync() }(l.disk.file)
		return false
	}
	select {
	case err := <-w.synced:
		if err = l.install(err); err != nil {
			w.synced = nil
			l.fail(err)
		}
		return err == nil
	default:
		return false
	}
}

func (l *File) install(err error) error {
	if err != nil {
		return err
	}
	l.head.state = stateComplete
	if l.settled {
		l.head.state |= stateSettled
	}
	if err := l.writeHeader(); err != nil {
		return err
	}
	name := filepath.Base(l.cfg.Path)
	if err := l.dir.Rename(name+keyfile.Suffix, name); err != nil {
		return err
	}
	l.rewrite = nil
	return nil
}

func (l *File) endRewrite() {
	if l.rewrite == nil {
		return
	}
	if w := l.rewrite; w.synced != nil && l.closed {
		<-w.synced
	}
	l.off, l.rewrite = true, nil
	_ = l.disk.close()
	_ = l.dir.Remove(filepath.Base(l.cfg.Path) + keyfile.Suffix)
}
