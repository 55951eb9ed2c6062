package statefile

import (
	"fmt"
	"os"
)

// setAsideSuffix is added to the name of a file in which nothing is ours.
const setAsideSuffix = ".old"

// Open opens the state file or makes a new one, and returns what the process
// before left in it. Whatever state the file is in, the state file can be used; an
// error means that the configuration is wrong, or that there is no regular file
// at the path and none can be made. If the file can be opened but not written,
// OnError is told and the state file stores nothing.
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
	if size > 0 && s.worthless() {
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
		return nil, 0, fmt.Errorf("state file: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("state file: %w", err)
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
		return nil, fmt.Errorf("state file: %w", err)
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
