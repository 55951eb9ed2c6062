package statefile

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

const setAsideSuffix = ".old"

// Open opens or creates the state file and returns what the previous process left in it. It
// accepts a file in any state. It fails if the configuration is invalid, or if another user may
// have planted what is at the path; see [keyfile.Open]. If the file cannot be opened or written
// for another reason, as on a full disk, Open calls OnError and the File stores nothing until
// [File.Rewrite]. It takes about 5 ms per million free places, and 300 ms per million records.
//
// The capacity may differ between runs. Records above a smaller one stay at their places, and no
// new ones are stored there.
func Open(cfg Config) (*File, PreviousRun, error) {
	if err := cfg.check(); err != nil {
		return nil, PreviousRun{}, err
	}
	dir, err := os.OpenRoot(filepath.Dir(cfg.Path))
	if err != nil {
		return nil, PreviousRun{}, fmt.Errorf("statefile: %w", err)
	}
	l, left, err := openIn(dir, cfg)
	if err != nil {
		_ = dir.Close()
		return nil, PreviousRun{}, err
	}
	return l, left, nil
}

func openIn(dir *os.Root, cfg Config) (*File, PreviousRun, error) {
	name, machine := filepath.Base(cfg.Path), machineRun(cfg.Machine)
	_ = dir.Remove(name + keyfile.Suffix) // It was not complete when its process ended.
	f, size, err := openFile(dir, name)
	if err != nil {
		advanceCounter(dir, name, cfg.Relay)
		return openLater(dir, cfg, nil, scan{seed: recordSeed(cfg.Relay)}, err)
	}
	s := scanFile(f, size, cfg.Relay, machine, cfg.Places)
	if size > 0 && s.holdsNothing() {
		if f, err = setAside(dir, name, f); err != nil {
			return openLater(dir, cfg, nil, s, err)
		}
		size = 0
	}
	c, err := openCounter(dir, name, cfg.Relay)
	if err != nil {
		return openLater(dir, cfg, f, s, err)
	}
	s.checkCount(c.found)
	l := newFile(cfg, f, machine, &s)
	l.dir, l.counter, l.count = dir, c, max(s.count, c.found)
	if err := l.start(f, size, &s); err != nil {
		l.fail(err)
	}
	return l, s.previousRun(), nil
}

// openLater returns a File that stores nothing until it is written anew, or err if the operator
// must mend what is in the directory. A nil f could not be opened.
func openLater(dir *os.Root, cfg Config, f *os.File, s scan, err error) (*File, PreviousRun, error) {
	if keyfile.IsRefusal(err) || errors.Is(err, fs.ErrPermission) {
		if f != nil {
			_ = f.Close()
		}
		return nil, PreviousRun{}, err
	}
	s.err = err
	l := newFile(cfg, f, machineRun(cfg.Machine), &s)
	l.dir, l.count = dir, s.count
	l.fail(err)
	return l, s.previousRun(), nil
}

// openFile refuses what another user may have planted or can read.
func openFile(dir *os.Root, name string) (*os.File, int64, error) {
	f, err := keyfile.Open(dir, name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, 0, fmt.Errorf("statefile: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("statefile: %w", err)
	}
	return f, info.Size(), nil
}

// setAside is for a file that another program or another relay wrote.
func setAside(dir *os.Root, name string, f *os.File) (*os.File, error) {
	_ = f.Close()
	if err := dir.Rename(name, name+setAsideSuffix); err != nil {
		return nil, fmt.Errorf("statefile: %w", err)
	}
	f, _, err := openFile(dir, name)
	return f, err
}

func newFile(cfg Config, f *os.File, machine [16]byte, s *scan) *File {
	places := max(cfg.Capacity, s.top())
	l := &File{
		cfg:  cfg,
		disk: disk{places: places},
		head: header{
			capacity: places, relay: cfg.Relay, machine: machine,
			state: stateComplete, boots: bootsWith(s.head.boots, cfg.Boot),
		},
		seed: s.seed,
		free: newFreePlaces(cfg.Capacity),
	}
	if f != nil {
		l.disk.file = f
	}
	if l.settled = s.isSettled(); l.settled {
		l.head.state |= stateSettled
	}
	return l
}

// start repairs and resizes the file and writes its header. If the process is killed between two
// steps, the file claims no more than it holds.
func (l *File) start(f *os.File, size int64, s *scan) error {
	if s.redoPlace != 0 {
		if err := l.disk.write(s.redoRecord[:], offset(s.redoPlace)); err != nil {
			return err
		}
	}
	want := fileSize(l.disk.places)
	if size < want {
		if err := l.disk.file.Truncate(want); err != nil {
			return err
		}
	}
	if err := l.writePage(); err != nil {
		return err
	}
	if s.head.state&stateClosed != 0 {
		// The header on the disk must not claim that the file is unchanged.
		if err := l.disk.file.Sync(); err != nil {
			return err
		}
	}
	if err := l.counter.start(l.count, !l.cfg.Unmapped); err != nil {
		return err
	}
	if size > want {
		if err := l.disk.file.Truncate(want); err != nil {
			return err
		}
	}
	if !l.cfg.Unmapped {
		_ = l.disk.startMapping(f, s.top()) // Without a mapping the file is slower.
	}
	return l.adopt(s)
}

// writePage empties the journal, and takes space on the disk. It counts as a change.
func (l *File) writePage() error {
	page := make([]byte, headerSize)
	copy(page, l.head.encode())
	l.count++
	putWord(page[countAt:], l.seed, countAt, l.count)
	_, err := l.disk.file.WriteAt(page, 0)
	return err
}

// adopt frees the damaged places, which the header no longer covers.
func (l *File) adopt(s *scan) error {
	for i := range s.found {
		l.free.take(s.found[i].Place)
		l.disk.markReserved(s.found[i].Place)
	}
	var zeros rawRecord
	for _, p := range s.damaged {
		if int(p) > l.disk.places {
			break // Truncate has removed it.
		}
		if _, err := l.disk.file.WriteAt(zeros[:], offset(p)); err != nil {
			return err
		}
	}
	return nil
}

type PreviousRun struct {
	// Records are the intact records, by place, until they are removed. If the file is not
	// complete, they may lack changes or removals.
	Records  []FoundRecord
	Complete bool
	// Boots are those that the file accounts for, newest first, at most 16: an allocation of one
	// of them that is not in Records has ended. Empty if the file is not complete.
	Boots []uint64
	// Settled: the file accounts for all boots.
	Settled bool
	// Damaged places are neither free nor hold an intact record.
	Damaged int
	// Closed is when the previous process closed the file; zero if it did not, or the file is not
	// complete.
	Closed time.Time
	// Err is why the file is not complete.
	Err error
}

// Ended reports whether the file proves that an allocation of boot without a record has ended.
func (l *PreviousRun) Ended(boot uint64) bool { return slices.Contains(l.Boots, boot) }

type scan struct {
	seed       uint32
	head       header // zero if it is damaged
	own        bool   // the header is intact and this relay's
	err        error  // why the file is not complete
	count      uint64 // changes ever made; 0: unknown
	found      []FoundRecord
	damaged    []Place
	redoPlace  Place     // the torn place that the journal repairs; 0: none
	redoRecord rawRecord // its content according to the journal
}

// scanFile finds records even if the header is damaged, since their checksums are keyed with the
// relay. Places, if not nil, are the only ones that may hold a record.
func scanFile(f io.ReaderAt, size int64, relay, machine [16]byte, places []Place) scan {
	s := scan{seed: recordSeed(relay)}
	page := make([]byte, headerSize)
	n, err := f.ReadAt(page[:min(size, headerSize)], 0)
	switch {
	case size == 0:
		s.err = ErrAbsent
	case err != nil && err != io.EOF:
		s.err = err
	default:
		if s.head, s.err = parseHeader(page[:n]); s.err == nil {
			s.own = s.head.relay == relay
			s.err = s.head.checkComplete(relay, machine, size)
		}
	}
	var torn Place
	var after rawRecord
	if s.own {
		s.readCount(page[countAt:])
		torn, after = (*rawEntry)(page[journalAt:]).decode(s.seed)
	} else {
		s.head = header{}
	}
	if places != nil {
		s.readPlaces(f, size, places, torn, &after)
	} else {
		s.scanPlaces(f, size, torn, &after)
	}
	if len(s.damaged) > 0 && s.err == nil {
		s.err = fmt.Errorf("%w: %d besides %d intact ones", ErrDamaged, len(s.damaged), len(s.found))
	}
	return s
}

// The word is zero in files of versions that did not count.
func (s *scan) readCount(word []byte) {
	count, ok := parseWord(word, s.seed, countAt)
	switch {
	case ok:
		s.count = count
	case s.err == nil && !bytes.Equal(word[:8], make([]byte, 8)):
		s.err = ErrHeader
	}
}

func (s *scan) checkCount(found uint64) {
	if s.err == nil {
		s.err = checkCount(s.count, found)
	}
}

// A place above the capacity in the header may be from a process that was killed while it extended
// the file.
func (s *scan) scanPlaces(f io.ReaderAt, size int64, torn Place, after *rawRecord) {
	size = min(size, fileSize(MaxCapacity))
	if size <= headerSize {
		return
	}
	zeros := make([]byte, min(chunkPlaces, placesIn(size-headerSize))*recordSize)
	chunk := make([]byte, len(zeros))
	for at := int64(headerSize); at < size; at += int64(len(chunk)) {
		clear(chunk)
		part := chunk[:min(size-at, int64(len(chunk)))]
		first := Place((at-headerSize)/recordSize + 1)
		if n, err := f.ReadAt(part, at); n < len(part) {
			s.addUnreadable(first, placesIn(int64(len(part))), err)
			continue
		}
		if bytes.Equal(chunk, zeros) {
			continue
		}
		for i := range len(chunk) / recordSize {
			raw := (*rawRecord)(chunk[i*recordSize:])
			if !raw.free() {
				s.addPlace(first+Place(i), raw, torn, after)
			}
		}
	}
}

// Places are in ascending order.
func (s *scan) readPlaces(f io.ReaderAt, size int64, places []Place, torn Place, after *rawRecord) {
	var chunk [64 * recordSize]byte
	var first Place // of the chunk; 0: it is empty
	for _, p := range places {
		if p == 0 || offset(p+1) > size {
			continue
		}
		if first == 0 || p >= first+Place(len(chunk)/recordSize) {
			first = p
			part := chunk[:min(size-offset(p), int64(len(chunk)))]
			if n, err := f.ReadAt(part, offset(p)); n < len(part) {
				s.addUnreadable(p, 1, err)
				first = 0
				continue
			}
		}
		raw := (*rawRecord)(chunk[int(p-first)*recordSize:])
		if !raw.free() {
			s.addPlace(p, raw, torn, after)
		}
	}
}

// placesIn rounds up.
func placesIn(size int64) int { return int((size + recordSize - 1) / recordSize) }

func (s *scan) addUnreadable(first Place, count int, err error) {
	if s.err == nil {
		s.err = err
	}
	for i := range count {
		s.damaged = append(s.damaged, first+Place(i))
	}
}

func (s *scan) addPlace(p Place, raw *rawRecord, torn Place, after *rawRecord) {
	if !raw.intact(s.seed, p) && p == torn {
		s.redoPlace, s.redoRecord = p, *after
		raw = after
		if raw.free() {
			return
		}
	}
	if raw.intact(s.seed, p) {
		if r, ok := raw.decode(); ok {
			s.found = append(s.found, FoundRecord{r, p})
			return
		}
	}
	s.damaged = append(s.damaged, p)
}

func (s *scan) holdsNothing() bool { return !s.own && len(s.found) == 0 }

func (s *scan) top() int {
	if len(s.found) == 0 {
		return 0
	}
	return int(s.found[len(s.found)-1].Place)
}

func (s *scan) previousRun() PreviousRun {
	l := PreviousRun{Records: s.found, Complete: s.err == nil, Damaged: len(s.damaged), Err: s.err}
	if l.Complete {
		l.Boots, l.Settled = s.head.boots, s.isSettled()
		if !l.Settled {
			l.Boots = l.Boots[:min(len(l.Boots), 1)]
		}
		if s.head.closed != 0 {
			l.Closed = time.Unix(int64(s.head.closed), 0)
		}
	}
	return l
}

// isSettled is about boots before the last one.
func (s *scan) isSettled() bool { return s.err == nil && s.head.state&stateSettled != 0 }

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// machineRun is a digest of name, or of the kernel's boot id if name is empty; zero if that is
// unknown.
func machineRun(name string) [16]byte {
	if name == "" {
		id, err := os.ReadFile(bootIDFile)
		if err != nil || len(id) == 0 {
			return [16]byte{}
		}
		name = string(id)
	}
	sum := sha256.Sum256([]byte(name))
	return [16]byte(sum[:])
}
