package statefile

import (
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/internal/privateapi"
)

// MaxCapacity is a file of 768 MiB, if all are in use.
const MaxCapacity = 1 << 24

type Config struct {
	// Path is in a directory that must exist. A file there without records of this relay is
	// renamed to Path + ".old". Path + ".counter" shows whether an older copy was put at Path.
	Path string
	// Capacity is the largest number of records, 1 to MaxCapacity. Records of the previous process
	// count until they are removed, so it should be twice the relay's most allocations. An unused
	// place takes one bit of memory and no disk space.
	Capacity int
	// Relay is the relay's id.
	Relay [16]byte
	// Boot is that of engine.Identity. Not 0.
	Boot uint64
	// Machine identifies this run of the machine. Default: the boot id of the kernel on Linux;
	// elsewhere unknown, so that only a closed file is complete.
	Machine string
	// Places are those of all records, in ascending order, if the previous process has told them
	// and nothing else can be in the file. Nil: Open reads the whole file.
	Places []Place
	// Unmapped: each change takes two system calls, as on platforms without mappings.
	Unmapped bool
	// OnError is called with the error after which changes are not stored, and with ErrFull: each
	// at most once until the file is complete again. The goroutine that calls a method, or Open,
	// calls it; it must not call the File.
	OnError func(error)
}

func (c *Config) check() error {
	if c.Path == "" {
		return errors.New("statefile: no path")
	}
	if c.Capacity < 1 || c.Capacity > MaxCapacity {
		return fmt.Errorf("statefile: capacity %d is not 1 to %d", c.Capacity, MaxCapacity)
	}
	if c.Boot == 0 {
		return errors.New("statefile: no boot id")
	}
	return nil
}

func (c *Config) reportError(err error) {
	if c.OnError != nil {
		c.OnError(err)
	}
}

// Reasons for which a file is not complete, wrapped by [PreviousRun].Err, besides errors of the
// file system.
var (
	ErrAbsent    = privateapi.ErrStateAbsent
	ErrHeader    = errors.New("statefile: header damaged")
	ErrVersion   = errors.New("statefile: other version")
	ErrForeign   = errors.New("statefile: file of another relay")
	ErrTruncated = errors.New("statefile: file truncated")
	ErrDamaged   = errors.New("statefile: records damaged")
	// ErrMachine: the machine may have restarted while the file was open.
	ErrMachine = errors.New("statefile: machine restarted while the file was open")
	// ErrRolledBack: an older copy was put in its place, or a process ran that could not open it.
	ErrRolledBack = privateapi.ErrStateRolledBack
	// ErrNoCounter: the counter is missing or damaged.
	ErrNoCounter = errors.New("statefile: its counter file is missing, so it may be an older copy")
	// ErrUnstored: the previous process could not store all changes.
	ErrUnstored = errors.New("statefile: not everything was stored")
)

var (
	// ErrFull: absence proves nothing for the boots of this file. Changes of other allocations are
	// still stored.
	ErrFull = privateapi.ErrStateFull
	// ErrPlace: an error of the caller, or another process wrote to the file.
	ErrPlace = errors.New("statefile: place holds no intact record")
)
