package state

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/ferryrelay/ferry/internal/keyfile"
)

// The names in a state directory.
const (
	identityName    = "identity"
	lockName        = "lock"
	allocationsName = "allocations"
	sessionsName    = "sessions"
	tempName        = identityName + keyfile.Suffix
	// mountName is in the root of a new file system.
	mountName = "lost+found"
)

// maxIdentity bounds the identity file in bytes; the real one has 230.
const maxIdentity = 4 << 10

var (
	// ErrInUse is wrapped by the error about a directory that another process
	// holds.
	ErrInUse = errors.New("is in use by another process")
	// ErrPermissions is wrapped by the error about a file or directory that
	// others can read or change.
	ErrPermissions = errors.New("is open to other users")
	// ErrForeign is wrapped by the error about a directory that holds files but
	// no identity.
	ErrForeign = errors.New("holds other files but no identity; name an empty or a new directory")
)

// Dir is a state directory that this process holds. It does not change after
// Open.
type Dir struct {
	Identity Identity
	// Created is set when Open made the identity.
	Created bool

	path string
	lock *os.File
}

// Allocations returns the name of the file that holds what a restart must know
// of each allocation. Package statefile makes and reads it.
func (d *Dir) Allocations() string { return filepath.Join(d.path, allocationsName) }

// Sessions returns the name of the file of DTLS sessions that go on after a
// restart. Package statefile makes and reads it.
func (d *Dir) Sessions() string { return filepath.Join(d.path, sessionsName) }

// Open locks the directory at path for this process. On first use it creates the
// directory and the identity, and logs that. Errors wrap ErrInUse,
// ErrPermissions, ErrForeign or ErrDamaged, or are the system's.
func Open(path string, log *slog.Logger) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if err := checkPrivate(path, 0o002); err != nil {
		return nil, err
	}
	lock, err := takeLock(filepath.Join(path, lockName))
	if err != nil {
		return nil, err
	}
	d := &Dir{path: path, lock: lock}
	if err := d.load(path); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.Created {
		log.Info("made a relay id and a master key", "dir", path, "relay", d.Identity.Relay.String())
	}
	return d, nil
}

// Close unlocks the directory.
func (d *Dir) Close() error { return d.lock.Close() }

func (d *Dir) load(path string) error {
	name := filepath.Join(path, identityName)
	file, err := readIdentity(name)
	if errors.Is(err, fs.ErrNotExist) {
		return d.create(path)
	}
	if err != nil {
		return err
	}
	if d.Identity, err = decode(file); err != nil {
		return fmt.Errorf("state: %s %w", name, err)
	}
	return nil
}

func readIdentity(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxIdentity {
		return nil, fmt.Errorf("state: %s %w", name, ErrDamaged)
	}
	if err := checkPrivate(name, 0o077); err != nil {
		return nil, err
	}
	file, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return file, nil
}

func (d *Dir) create(path string) error {
	if err := checkEmpty(path); err != nil {
		return err
	}
	identity, err := NewIdentity()
	if err != nil {
		return err
	}
	if err := keyfile.Write(filepath.Join(path, identityName), identity.encode()); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	d.Identity, d.Created = identity, true
	return nil
}

// checkEmpty returns nil for a directory without other files. A temporary file is left
// by an interrupted first start.
func checkEmpty(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockName, tempName, mountName:
		default:
			return fmt.Errorf("state: %s %w", path, ErrForeign)
		}
	}
	return nil
}

// checkPrivate returns ErrPermissions for a file that grants one of the permission bits
// in others. Windows uses access lists instead, which the bits do not show.
func checkPrivate(path string, others fs.FileMode) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	mode := info.Mode().Perm()
	if runtime.GOOS == "windows" || mode&others == 0 {
		return nil
	}
	return fmt.Errorf("state: %s %w (mode %04o); to mend it: chmod %04o %s", path, ErrPermissions, mode, mode&^others, path)
}
