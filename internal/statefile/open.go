package statefile

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
)

// setAsideSuffix is added to the name of a file that holds nothing of this relay.
const setAsideSuffix = ".old"

// Open opens the state file or makes a new one, and returns what the process
// before left in it. Whatever state the file is in, the state file can be used; an
// error means that the configuration is wrong, or that there is no regular file
// at the path and none can be made. If the file can be opened but not written,
// OnError is called and the state file stores nothing.
//
// The file is read as a whole: some 5 ms per million free places, and 300 ms per
// million records.
//
// The capacity may differ from run to run. Records beyond a smaller one are
// kept at their places until they are removed, and no new ones go there.
func Open(cfg Config) (*File, Left, error) {
	if err := cfg.check(); err != nil {
		return nil, Left{}, err
	}
	f, size, err := openFile(cfg.Path)
	if err != nil {
		return nil, Left{}, err
	}
	machine := machineRun(cfg.Machine)
	s := scanFile(f, size, cfg.Relay, machine)
	if size > 0 && s.holdsNothing() {
		if f, err = setAside(f, cfg.Path); err != nil {
			return nil, Left{}, err
		}
		size = 0
	}
	l := newFile(cfg, f, machine, &s)
	if err := l.start(f, size, &s); err != nil {
		l.fail(err)
	}
	return l, s.left(), nil
}

// openFile opens or makes the file at path, for this user only. An older file
// of another owner keeps its mode: a volume that is shared by a group must not
// keep the relay from starting.
func openFile(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("statefile: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("statefile: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		_ = f.Chmod(0o600)
	}
	return f, info.Size(), nil
}

// setAside renames a file that is not this relay's and makes a new one.
func setAside(f *os.File, path string) (*os.File, error) {
	_ = f.Close()
	if err := os.Rename(path, path+setAsideSuffix); err != nil {
		return nil, fmt.Errorf("statefile: %w", err)
	}
	f, _, err := openFile(path)
	return f, err
}

func newFile(cfg Config, f *os.File, machine [16]byte, s *scan) *File {
	places := max(cfg.Capacity, s.top())
	l := &File{
		cfg:  cfg,
		disk: disk{file: f, places: places},
		head: header{
			capacity: places, relay: cfg.Relay, machine: machine,
			state: stateComplete, boots: after(s.head.boots, cfg.Boot),
		},
		seed: s.seed,
		free: newFreePlaces(cfg.Capacity),
	}
	if s.settled() {
		l.head.state |= stateSettled
	}
	return l
}

// start brings the file into the form that the state file needs. A kill between
// any two steps leaves a file that says no more than it holds.
func (l *File) start(f *os.File, size int64, s *scan) error {
	if s.redo != 0 {
		if err := l.disk.write(s.redone[:], offset(s.redo)); err != nil {
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
		// The disk must not go on saying that nothing was changed since.
		if err := l.disk.file.Sync(); err != nil {
			return err
		}
	}
	if size > want {
		if err := l.disk.file.Truncate(want); err != nil {
			return err
		}
	}
	if !l.cfg.Unmapped {
		l.disk.startMapping(f, s.top())
	}
	return l.adopt(s)
}

// writePage writes the header with an empty journal, so that its page has room
// on the disk.
func (l *File) writePage() error {
	page := make([]byte, headerSize)
	copy(page, l.head.encode())
	_, err := l.disk.file.WriteAt(page, 0)
	return err
}

// adopt takes over the records found and frees the damaged places, which the
// header no longer vouches for.
func (l *File) adopt(s *scan) error {
	for i := range s.found {
		l.free.take(s.found[i].Place)
		l.disk.occupied(s.found[i].Place)
	}
	var none rawRecord
	for _, p := range s.damaged {
		if int(p) > l.disk.places {
			break // It was cut off with the end of the file.
		}
		if _, err := l.disk.file.WriteAt(none[:], offset(p)); err != nil {
			return err
		}
	}
	return nil
}

// Left is what the process before left in the file.
type Left struct {
	// Records are the intact ones, by place. They stay in the file until they
	// are removed. If the file is not complete they may be old: a change or a
	// removal may be missing.
	Records []Found
	// Complete says that everything the process before stored is there.
	Complete bool
	// Boots are those for which the file accounts, newest first, at most 16: an
	// allocation that was issued under one of them and is not among Records has
	// ended. None if the file is not complete.
	Boots []uint64
	// Settled says that the file accounts for all that was ever issued, by any
	// boot.
	Settled bool
	// Damaged is how many places hold neither a record nor nothing.
	Damaged int
	// Err is why the file is not complete, for the log; nil if it is.
	Err error
}

// Ended reports whether an allocation that was issued under boot, and is not
// among l.Records, has surely ended.
func (l *Left) Ended(boot uint64) bool { return slices.Contains(l.Boots, boot) }

// scan is what a file has in it.
type scan struct {
	seed    uint32
	head    header // zero if it is damaged
	own     bool   // the header is intact and this relay's
	err     error  // why the file is not complete
	found   []Found
	damaged []Place
	redo    Place     // place that was torn and is in the journal; 0: none
	redone  rawRecord // what it was to hold
}

// scanFile reads a whole file of size bytes. Even if the header is damaged it
// looks for records, since their checksums say which relay they are of.
func scanFile(f io.ReaderAt, size int64, relay, machine [16]byte) scan {
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
			s.err = s.head.incomplete(relay, machine, size)
		}
	}
	var torn Place
	var after rawRecord
	if s.own {
		torn, after = (*rawEntry)(page[journalAt:]).decode(s.seed)
	} else {
		s.head = header{}
	}
	s.places(f, size, torn, &after)
	if len(s.damaged) > 0 && s.err == nil {
		s.err = fmt.Errorf("%w: %d besides %d intact ones", ErrDamaged, len(s.damaged), len(s.found))
	}
	return s
}

// places reads the places. A place beyond the capacity that the header gives
// may come from a process that was killed while it made the file longer.
func (s *scan) places(f io.ReaderAt, size int64, torn Place, after *rawRecord) {
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
			s.unread(first, placesIn(int64(len(part))), err)
			continue
		}
		if bytes.Equal(chunk, zeros) {
			continue
		}
		for i := range len(chunk) / recordSize {
			raw := (*rawRecord)(chunk[i*recordSize:])
			if !raw.free() {
				s.place(first+Place(i), raw, torn, after)
			}
		}
	}
}

// placesIn returns how many places so many bytes touch.
func placesIn(size int64) int { return int((size + recordSize - 1) / recordSize) }

// unread notes that so many places from first on cannot be read.
func (s *scan) unread(first Place, count int, err error) {
	if s.err == nil {
		s.err = err
	}
	for i := range count {
		s.damaged = append(s.damaged, first+Place(i))
	}
}

// place takes in a place that is not free.
func (s *scan) place(p Place, raw *rawRecord, torn Place, after *rawRecord) {
	if !raw.intact(s.seed, p) && p == torn {
		s.redo, s.redone = p, *after
		raw = after
		if raw.free() {
			return
		}
	}
	if raw.intact(s.seed, p) {
		if r, ok := raw.decode(); ok {
			s.found = append(s.found, Found{r, p})
			return
		}
	}
	s.damaged = append(s.damaged, p)
}

// holdsNothing reports whether nothing in the file is this relay's.
func (s *scan) holdsNothing() bool { return !s.own && len(s.found) == 0 }

// top returns the highest place that holds a record.
func (s *scan) top() int {
	if len(s.found) == 0 {
		return 0
	}
	return int(s.found[len(s.found)-1].Place)
}

func (s *scan) left() Left {
	l := Left{Records: s.found, Complete: s.err == nil, Damaged: len(s.damaged), Err: s.err}
	if l.Complete {
		l.Boots, l.Settled = s.head.boots, s.settled()
		if !l.Settled {
			l.Boots = l.Boots[:min(len(l.Boots), 1)]
		}
	}
	return l
}

// settled reports whether the file accounts for boots before its last one.
func (s *scan) settled() bool { return s.err == nil && s.head.state&stateSettled != 0 }

// bootIDFile is where Linux keeps a random id that it draws when it starts.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// machineRun returns a digest of the name of this run of the machine, or of
// what the kernel says if name is empty; zero where it says nothing.
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
