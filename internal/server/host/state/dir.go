package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

const (
	identityName = "identity"
	lockName     = "lock"
	tempName     = identityName + keyfile.Suffix
	// mountName is in the root of a new file system.
	mountName = "lost+found"
)

// maxIdentity bounds the identity file in bytes; the real one has 230.
const maxIdentity = 4 << 10

var (
	// ErrInUse is wrapped by the error about a directory that another process holds.
	ErrInUse = errors.New("is in use by another process")
	// ErrForeign is wrapped by the error about a directory that holds files but no identity.
	ErrForeign = errors.New("holds other files but no identity; name an empty or a new directory")
	// ErrOtherRelay is wrapped by the error about a directory with another id than the settings ask for.
	ErrOtherRelay = errors.New("is the directory of another relay; correct relay_id, or name a new directory")
)

type Dir struct {
	Identity Identity
	// Created is set when Open made the identity.
	Created bool

	path    string
	runtime string // of the files that change
	lock    *os.File
	// runtimeLock is the lock of another directory for these files; nil: there is none.
	runtimeLock *os.File
}

// Files are the paths of what the next run reads. What has none ends with the process.
type Files struct {
	Allocations string // what a restart must know of each
	Sessions    string // of DTLS
	Usage       string // of projects, in all runs
	Bans        string // of the operator, in a process that is not of a fleet
	SignOuts    string // of sessions of the console
}

// Files returns the paths of the files.
func (d *Dir) Files() Files {
	return Files{
		Allocations: filepath.Join(d.runtime, "allocations"), Sessions: filepath.Join(d.runtime, "sessions"),
		Usage: filepath.Join(d.path, "usage"), Bans: filepath.Join(d.path, "bans"), SignOuts: filepath.Join(d.path, "signouts"),
	}
}

// Open locks the directory at path for this process. On first use it creates the
// directory and the identity, and logs that. The directory and its files must belong to
// this user or to root and be closed to others. Errors wrap ErrInUse, ErrForeign or
// ErrDamaged, or are those of package keyfile or the system.
func Open(path string, log *slog.Logger) (*Dir, error) {
	return Inherit(path, log, alloc.RelayID{}, nil)
}

// Inherit is Open with the lock of another process, see [Dir.Locks], which hands the directory
// over. Nil: there is none. The identity is made for the relay id, or for a random one if that is
// zero; a directory of another relay is refused with ErrOtherRelay.
func Inherit(path string, log *slog.Logger, id alloc.RelayID, held *os.File) (d *Dir, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	dir, err := keyfile.OpenDir(path)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	lock, err := takeLock(dir, held)
	if err != nil {
		return nil, err
	}
	d = &Dir{path: path, runtime: path, lock: lock}
	if err := d.load(dir, id); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.Created {
		log.Info("made a relay id and a master key", "dir", path, "relay", d.Identity.Relay.String())
	}
	return d, nil
}

// UseRuntime moves the files of allocations and sessions to another directory, which it
// creates if needed and locks. Files in the state directory are not read. It is called once,
// before these files are opened. Held is as for Inherit, and so are errors.
func (d *Dir) UseRuntime(path string, held *os.File) (err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	dir, err := keyfile.OpenDir(path)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if d.runtimeLock, err = takeLock(dir, held); err != nil {
		return err
	}
	d.runtime = path
	return nil
}

// Locks returns the locks of the state directory and of that of UseRuntime, which is nil if
// there is none. They are held as long as a process has them open.
func (d *Dir) Locks() (lock, runtime *os.File) { return d.lock, d.runtimeLock }

// NoteHolder writes the id of this process into the locks, for the error of another one.
func (d *Dir) NoteHolder() {
	writeProcessID(d.lock)
	if d.runtimeLock != nil {
		writeProcessID(d.runtimeLock)
	}
}

// Close unlocks the directories.
func (d *Dir) Close() error {
	err := closeLock(d.lock)
	if d.runtimeLock != nil {
		err = errors.Join(err, closeLock(d.runtimeLock))
	}
	return err
}

// closeLock: a lock may be closed after a hand-over.
func closeLock(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func (d *Dir) load(dir *os.Root, id alloc.RelayID) error {
	file, err := readIdentity(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return d.create(dir, id)
	}
	if err == nil {
		d.Identity, err = decode(file)
	}
	if errors.Is(err, ErrDamaged) {
		return fmt.Errorf("state: %s %w", filepath.Join(dir.Name(), identityName), err)
	}
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if !id.IsZero() && id != d.Identity.Relay {
		return fmt.Errorf("state: %s %w: it is that of %s, not of %s", dir.Name(), ErrOtherRelay, d.Identity.Relay, id)
	}
	return nil
}

func readIdentity(dir *os.Root) ([]byte, error) {
	f, err := keyfile.Open(dir, identityName, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	file, err := io.ReadAll(io.LimitReader(f, maxIdentity+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(file) > maxIdentity {
		return nil, ErrDamaged
	}
	return file, nil
}

func (d *Dir) create(dir *os.Root, id alloc.RelayID) error {
	if err := checkEmpty(dir); err != nil {
		return err
	}
	identity, err := NewIdentity()
	if err != nil {
		return err
	}
	if !id.IsZero() {
		identity.Relay = id
	}
	if err := keyfile.WriteIn(dir, identityName, identity.encode()); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	d.Identity, d.Created = identity, true
	return nil
}

// checkEmpty allows a temporary file, which an interrupted first start leaves.
func checkEmpty(dir *os.Root) error {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockName, tempName, mountName:
		default:
			return fmt.Errorf("state: %s %w", dir.Name(), ErrForeign)
		}
	}
	return nil
}
