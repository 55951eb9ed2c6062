package statefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

// File is the state file of one relay. It is not safe for concurrent use, but for SlowChanges. A
// nil File stores nothing.
type File struct {
	cfg        Config
	dir        *os.Root // of the file
	disk       disk
	counter    *counter
	count      uint64 // changes ever made, by all processes
	head       header
	seed       uint32
	free       freePlaces
	off        bool     // closed, or storing failed
	overflowed bool     // an allocation found no place
	settled    bool     // see Settle
	closed     bool     // by Close or CloseForHandover
	rewrite    *rewrite // nil: the file is not written anew
	slow       atomic.Uint64

	raw    rawRecord // the record that is being changed
	change rawChange // the number of the change, and its journal
}

// slowChange is how long a change must take to count as slow. It takes 0.3 µs.
const slowChange = 10 * time.Millisecond

// SlowChanges counts changes that waited for the disk: the system makes a store to a page wait
// while it writes that page, or metadata of the file, to a busy disk. Any goroutine may call it.
func (l *File) SlowChanges() uint64 {
	if l == nil {
		return 0
	}
	return l.slow.Load()
}

func (l *File) countSlow(begin time.Time) {
	if time.Since(begin) >= slowChange {
		l.slow.Add(1)
	}
}

// rawChange is written first: the word at countAt and the journal behind it.
type rawChange [journalAt - countAt + entrySize]byte

func (c *rawChange) entry() *rawEntry { return (*rawEntry)(c[journalAt-countAt:]) }

// Add stores a record at the lowest free place. It returns 0 if nothing more is stored, or the
// file is full; then absence proves nothing until the next Open.
func (l *File) Add(r *Record) Place {
	if l == nil || l.off {
		return 0
	}
	p := l.free.lowest()
	if p == 0 {
		l.overflow()
		return 0
	}
	begin := time.Now()
	if err := l.disk.reserve(p); err != nil {
		l.fail(err)
		return 0
	}
	l.countSlow(begin)
	l.raw.encode(r)
	if !l.put(p) {
		return 0
	}
	l.free.take(p)
	return p
}

// The flags replace all flags.
func (l *File) SetBinding(p Place, nonce uint16, endpoint uint64, flags Flags) {
	if l.get(p) {
		l.raw.setNonce(nonce)
		l.raw.setEndpoint(endpoint)
		l.raw.setFlags(flags)
		l.put(p)
	}
}

// SetEndpoint with 0 is for an allocation whose endpoint another one took over.
func (l *File) SetEndpoint(p Place, endpoint uint64) {
	if l.get(p) {
		l.raw.setEndpoint(endpoint)
		l.put(p)
	}
}

// SetLinks replaces all flags: those of a joiner change with its link too.
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

// Remove frees a place: absence then proves that the allocation has ended.
func (l *File) Remove(p Place) {
	if !l.get(p) {
		return
	}
	l.raw = rawRecord{}
	if l.store(p) {
		l.free.release(p)
	}
}

// get reports false if there is no record to change.
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

func (l *File) put(p Place) bool {
	l.raw.seal(l.seed, p)
	return l.store(p)
}

// store writes the journal, then the place, then the counter.
func (l *File) store(p Place) bool {
	begin := time.Now()
	l.count++
	putWord(l.change[:], l.seed, countAt, l.count)
	l.change.entry().encode(l.seed, p, &l.raw)
	err := l.disk.write(l.change[:], countAt)
	if err == nil {
		err = l.disk.write(l.raw[:], offset(p))
	}
	if err == nil {
		err = l.counter.set(l.count)
	}
	l.countSlow(begin)
	if err != nil {
		l.fail(err)
	}
	return err == nil
}

// Settle declares that every allocation without a record has ended, whatever its boot: after the
// time for recovery, when the records of what did not come back are removed. Without it the file
// accounts for this boot only, unless that of the previous process was settled and complete.
func (l *File) Settle() {
	if l == nil {
		return
	}
	l.settled = true
	if l.Incomplete() {
		return // Complete writes it.
	}
	l.head.state |= stateSettled
	if err := l.writeHeader(); err != nil {
		l.fail(err)
	}
}

// Storing reports whether no error has occurred, and the file is open.
func (l *File) Storing() bool { return !l.off }

// IsMapped reports whether changes take no system call.
func (l *File) IsMapped() bool { return l.disk.mapped != nil }

// Close syncs and closes the file, so that it is complete even if the machine restarts. Later
// changes have no effect. A second Close returns os.ErrClosed.
func (l *File) Close() error {
	if l.closed {
		return os.ErrClosed
	}
	l.closed = true
	l.endRewrite()
	err := l.finish()
	l.off = true
	err = errors.Join(err, l.closeFiles())
	if err != nil {
		return fmt.Errorf("statefile: %w", err)
	}
	return nil
}

// CloseForHandover does not wait for the disk: the file is for another process of this run of the
// machine.
func (l *File) CloseForHandover() error {
	if l.closed {
		return os.ErrClosed
	}
	l.off, l.closed = true, true
	l.endRewrite()
	return l.closeFiles()
}

func (l *File) closeFiles() error {
	return errors.Join(l.disk.close(), l.counter.close(), l.dir.Close())
}

// The records are durable before the header that declares it.
func (l *File) finish() error {
	if l.off {
		return nil
	}
	if err := l.disk.file.Sync(); err != nil {
		return err
	}
	l.head.state |= stateClosed
	l.head.closed = uint32(time.Now().Unix())
	if err := l.writeHeader(); err != nil {
		return err
	}
	return errors.Join(l.disk.file.Sync(), l.counter.source.Sync(), keyfile.SyncDir(l.dir))
}

func (l *File) overflow() {
	if l.overflowed {
		return
	}
	if l.rewrite != nil {
		l.fail(ErrFull)
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

// The file lacks all later changes, so fail marks it, or else removes it. A new file that is not
// complete yet is removed, which is not reported again.
func (l *File) fail(err error) {
	if l.off {
		return
	}
	l.off = true
	if l.rewrite != nil {
		l.endRewrite()
		return
	}
	l.head.state = 0
	if e := l.writeHeader(); e != nil {
		if e := l.dir.Remove(filepath.Base(l.cfg.Path)); e != nil {
			err = fmt.Errorf("%w; remove %s before the next start, as it could not be done: %w", err, l.cfg.Path, e)
		}
	}
	l.cfg.reportError(fmt.Errorf("statefile: changes are not stored: %w", err))
}

// writeHeader leaves the journal out, and counts as a change. It does not use the mapping, whose
// failure may be the reason.
func (l *File) writeHeader() error {
	b := append(l.head.encode(), make([]byte, 8)...)
	l.count++
	putWord(b[countAt:], l.seed, countAt, l.count)
	if l.disk.file != nil {
		if _, err := l.disk.file.WriteAt(b, 0); err != nil {
			return err
		}
	}
	return l.counter.set(l.count)
}
