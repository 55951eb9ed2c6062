package statefile

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

const counterSuffix = ".counter"

// The layout of a counter file.
//
//	0  8  magic          8  16 relay          24 8  value (a word)
const (
	counterMagic = "FERRYCNT"
	counterRelay = 8
	counterAt    = 24
	counterSize  = 32
)

// counter is a small file beside a state file that holds the value of a word of it. The value only
// rises, and the state file has it first: so a state file with a smaller one is an older copy. It
// has one user at a time.
type counter struct {
	source *os.File
	mapped []byte // nil: WriteAt
	unmap  func() error
	relay  [16]byte
	seed   uint32
	found  uint64 // value of the previous process; 0: none
	next   [8]byte
}

// A counter of another kind or relay is set aside.
func openCounter(dir *os.Root, name string, relay [16]byte) (*counter, error) {
	name += counterSuffix
	f, size, err := openFile(dir, name)
	if err != nil {
		return nil, err
	}
	c := &counter{relay: relay, seed: recordSeed(relay) ^ crc32.Checksum([]byte(counterMagic), castagnoli)}
	content := make([]byte, counterSize)
	if size > 0 {
		_, _ = f.ReadAt(content, 0)
		if string(content[:counterRelay]) != counterMagic {
			if f, err = setAside(dir, name, f); err != nil {
				return nil, err
			}
		}
	}
	if value, ok := parseWord(content[counterAt:], c.seed, counterAt); ok && [16]byte(content[counterRelay:]) == relay {
		c.found = value
	}
	c.source = f
	return c, nil
}

// advanceCounter makes the file look rolled back, since the process cannot store its changes
// there. The caller has reported an error already.
func advanceCounter(dir *os.Root, name string, relay [16]byte) {
	c, err := openCounter(dir, name, relay)
	if err != nil {
		return
	}
	if c.found > 0 {
		_ = c.start(c.found+1, false)
	}
	_ = c.close()
}

// start writes the whole file, so that its page has space on the disk.
func (c *counter) start(value uint64, mapped bool) error {
	content := make([]byte, counterSize)
	copy(content, counterMagic)
	copy(content[counterRelay:], c.relay[:])
	putWord(content[counterAt:], c.seed, counterAt, value)
	if _, err := c.source.WriteAt(content, 0); err != nil {
		return err
	}
	if mapped && c.mapped == nil {
		if mem, unmap, err := sock.MapFile(c.source, counterSize); err == nil {
			c.mapped, c.unmap = mem, unmap
		}
	}
	return nil
}

// The value must not be smaller than the last one, and the state file must have it already.
func (c *counter) set(value uint64) error {
	if c == nil {
		return nil // It could not be opened: the file is not complete.
	}
	putWord(c.next[:], c.seed, counterAt, value)
	if c.mapped != nil {
		return copyMapped(c.mapped[counterAt:], c.next[:])
	}
	_, err := c.source.WriteAt(c.next[:], counterAt)
	return err
}

func (c *counter) close() error {
	if c == nil {
		return nil
	}
	var err error
	if c.unmap != nil {
		err = c.unmap()
		c.mapped, c.unmap = nil, nil
	}
	return errors.Join(err, c.source.Close())
}

// checkCount compares the value in a file with what the previous process stored in its counter.
// Files of versions without a counter have 0 in both.
func checkCount(value, found uint64) error {
	switch {
	case value < found:
		return ErrRolledBack
	case value > 0 && found == 0:
		return ErrNoCounter
	}
	return nil
}

// A word is one aligned store of 8 bytes: a value of wordBits bits, and a checksum of 16
// bits that is keyed with a seed and the position.
const wordBits = 48

func putWord(b []byte, seed uint32, at int64, value uint64) {
	// The finalizer of SplitMix64: the high bits are well mixed.
	x := value ^ uint64(seed)<<16 ^ uint64(at)*0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	binary.LittleEndian.PutUint64(b, x&^uint64(MaxSequence)|value)
}

func parseWord(b []byte, seed uint32, at int64) (value uint64, ok bool) {
	var want [8]byte
	value = binary.LittleEndian.Uint64(b) & MaxSequence
	putWord(want[:], seed, at, value)
	return value, want == [8]byte(b[:8])
}
