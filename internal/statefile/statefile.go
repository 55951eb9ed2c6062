package statefile

import (
	"fmt"
	"os"
)

// File is the state file of one relay, opened by [Open]. It belongs to one
// goroutine and is not safe for concurrent use. A nil File stores nothing.
type File struct {
	cfg        Config
	disk       disk
	head       header
	seed       uint32
	free       freePlaces
	off        bool // closed, or storing failed
	overflowed bool // an allocation found no place

	raw   rawRecord // the record that is being changed
	entry rawEntry  // and its journal
}

// Add stores a new record at the lowest free place. It returns 0 when the
// file is full, which also ends that absence proves anything until the next
// Open, and when nothing is stored any more.
func (l *File) Add(r *Record) Place {
	if l == nil || l.off {
		return 0
	}
	p := l.free.lowest()
	if p == 0 {
		l.overflow()
		return 0
	}
	if err := l.disk.reserve(p); err != nil {
		l.fail(err)
		return 0
	}
	l.raw.encode(r)
	if !l.put(p) {
		return 0
	}
	l.free.take(p)
	return p
}

// SetBinding stores what an accepted BIND changes. The flags replace all flags.
func (l *File) SetBinding(p Place, nonce uint16, endpoint uint64, flags Flags) {
	if l.get(p) {
		l.raw.setNonce(nonce)
		l.raw.setEndpoint(endpoint)
		l.raw.setFlags(flags)
		l.put(p)
	}
}

// SetEndpoint stores where an allocation is bound; 0 for one whose endpoint
// was taken over.
func (l *File) SetEndpoint(p Place, endpoint uint64) {
	if l.get(p) {
		l.raw.setEndpoint(endpoint)
		l.put(p)
	}
}

// SetLinks stores how many links a host has, and the flags, which replace all
// flags: those of a joiner change with its link, too.
func (l *File) SetLinks(p Place, links uint16, flags Flags) {
	if l.get(p) {
		l.raw.setLinks(links)
		l.raw.setFlags(flags)
		l.put(p)
	}
}

// SetCode stores the join code of a host.
func (l *File) SetCode(p Place, code Code) {
	if l.get(p) {
		l.raw.setCode(code)
		l.put(p)
	}
}

// Remove frees a place: from here on the absence of its record says that the
// allocation has ended.
func (l *File) Remove(p Place) {
	if !l.get(p) {
		return
	}
	l.raw = rawRecord{}
	if l.store(p) {
		l.free.release(p)
	}
}

// get loads the record at p. It reports false if there is nothing to change.
func (l *File) get(p Place) bool {
	if l == nil || p == 0 || l.off {
		return false
	}
	if !l.disk.has(p) {
		l.fail(fmt.Errorf("%w: %d", ErrPlace, p))
		return false
	}
	if err := l.disk.read(l.raw[:], offset(p)); err != nil {
		l.fail(err)
		return false
	}
	if !l.raw.intact(l.seed, p) {
		l.fail(fmt.Errorf("%w: %d", ErrPlace, p))
		return false
	}
	return true
}

// put stores the changed record at p.
func (l *File) put(p Place) bool {
	l.raw.seal(l.seed, p)
	return l.store(p)
}

// store writes the journal and then the place. It reports whether it could.
func (l *File) store(p Place) bool {
	l.entry.encode(l.seed, p, &l.raw)
	err := l.disk.write(l.entry[:], journalAt)
	if err == nil {
		err = l.disk.write(l.raw[:], offset(p))
	}
	if err != nil {
		l.fail(err)
	}
	return err == nil
}

// Settle says that every allocation which is not in the state file has ended,
// whatever boot it was issued under: the window for recovery is over, and
// records whose allocation did not come back were removed. Without it the file accounts for
// this boot only, unless that of the process before was settled and complete.
func (l *File) Settle() {
	if l == nil || l.off || l.overflowed {
		return
	}
	l.head.state |= stateSettled
	if err := l.writeHeader(); err != nil {
		l.fail(err)
	}
}

// Storing reports whether changes are stored: no error has occurred, and the
// file is open.
func (l *File) Storing() bool { return !l.off }

// Mapped reports whether changes are stores to memory and not system calls.
func (l *File) Mapped() bool { return l.disk.mapped != nil }

// Close syncs the file, so that it stays complete even if the machine goes
// down, and closes it. The state file then does nothing any more. A second Close
// returns os.ErrClosed.
func (l *File) Close() error {
	if l.disk.file == nil {
		return os.ErrClosed
	}
	err := l.finish()
	l.off = true
	if e := l.disk.close(); err == nil {
		err = e
	}
	l.disk.file = nil
	if err != nil {
		return fmt.Errorf("statefile: %w", err)
	}
	return nil
}

// finish makes the records durable before the header that says so.
func (l *File) finish() error {
	if l.off {
		return nil
	}
	if err := l.disk.file.Sync(); err != nil {
		return err
	}
	l.head.state |= stateClosed
	if err := l.writeHeader(); err != nil {
		return err
	}
	return l.disk.file.Sync()
}

// overflow is for an allocation that has no place: its absence proves nothing.
func (l *File) overflow() {
	if l.overflowed {
		return
	}
	l.overflowed = true
	l.head.state = 0
	if err := l.writeHeader(); err != nil {
		l.fail(err)
		return
	}
	l.cfg.reportError(ErrFull)
}

// fail ends storing. The file says too little from here on, so it is marked,
// or else removed.
func (l *File) fail(err error) {
	if l.off {
		return
	}
	l.off = true
	l.head.state = 0
	if e := l.writeHeader(); e != nil {
		if e := os.Remove(l.cfg.Path); e != nil {
			err = fmt.Errorf("%w; remove %s before the next start, as it could not be done: %w", err, l.cfg.Path, e)
		}
	}
	l.cfg.reportError(fmt.Errorf("statefile: nothing is stored any more: %w", err))
}

// writeHeader writes the header, but not the journal. It goes past the
// mapping, which may be why it is written.
func (l *File) writeHeader() error {
	_, err := l.disk.file.WriteAt(l.head.encode(), 0)
	return err
}
