package statefile

import (
	"errors"
	"fmt"
)

// MaxCapacity is the largest capacity: a file of 768 MiB, if all are in use.
const MaxCapacity = 1 << 24

// Config says where the file is and whose.
type Config struct {
	// Path is where the file is. Its directory must exist. A file there that
	// holds nothing of this relay's is renamed to Path + ".old".
	Path string
	// Capacity is how many records the state file takes, 1 to MaxCapacity. Records
	// that the process before left count until they are removed, so it should be
	// twice the number of allocations that the relay holds at once. A place that
	// was never used takes a bit of memory and no disk.
	Capacity int
	// Relay is the relay's id. A file of another relay is not read.
	Relay [16]byte
	// Boot names this run of the process, as alloc.Sealer.Boot does. Not 0.
	Boot uint64
	// Machine names this run of the machine: it must change when the machine
	// starts again. Default: what the kernel says (Linux); elsewhere unknown, and
	// only a file that was closed is complete.
	Machine string
	// Unmapped keeps the file out of memory and writes each change with two
	// system calls, as on platforms without a mapping.
	Unmapped bool
	// OnError is called at most once with why nothing is stored any more, and at most
	// once when the state file was full (ErrFull). It is called by the goroutine that
	// called the state file, perhaps within Open, and must not call it. Default:
	// not called.
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

// Reasons for which a file is not complete. [Left].Err wraps one of them, or
// an error of the file system.
var (
	// ErrAbsent: there was no file.
	ErrAbsent = errors.New("statefile: no state file was there")
	// ErrHeader: the header is damaged, or the file is of another kind.
	ErrHeader = errors.New("statefile: header damaged")
	// ErrVersion: another version of the format.
	ErrVersion = errors.New("statefile: other version")
	// ErrForeign: the file of another relay.
	ErrForeign = errors.New("statefile: file of another relay")
	// ErrTruncated: the file is shorter than its header says.
	ErrTruncated = errors.New("statefile: file truncated")
	// ErrDamaged: records whose checksum is wrong.
	ErrDamaged = errors.New("statefile: records damaged")
	// ErrMachine: the machine went down, or may have gone down, with the file
	// open.
	ErrMachine = errors.New("statefile: machine restarted while the file was open")
	// ErrUnstored: the process before could not store everything.
	ErrUnstored = errors.New("statefile: not everything was stored")
)

// What OnError is called with, besides errors of the file system.
var (
	// ErrFull: an allocation found no free place, so absence proves nothing any
	// more for the boots of this file. Changes of others are stored as before.
	ErrFull = errors.New("statefile: full")
	// ErrPlace: a change of a place that holds no intact record. Either the
	// caller mixes up places or another process writes to the file.
	ErrPlace = errors.New("statefile: place holds no intact record")
)
