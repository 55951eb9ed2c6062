package statefile

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"runtime/debug"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// chunkPlaces are 48 KiB, whole pages, and take about 20 µs to write.
const chunkPlaces = 1024

type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
}

// disk belongs to the owner of the File.
type disk struct {
	file     file
	places   int      // in the file
	source   *os.File // of the mapping
	mapped   []byte   // header and the first places; nil: there is none
	unmap    func() error
	reserved []bool // chunks of the mapping that have space on the disk
	zeros    []byte // a chunk of them
}

// startMapping gets a file of its full size. Without a mapping the file is slower.
func (d *disk) startMapping(f *os.File, top int) error {
	d.source = f
	if err := d.remap(Place(min(max(top, 1), d.places))); err != nil {
		return err
	}
	d.reserved = make([]bool, (d.places+chunkPlaces-1)/chunkPlaces)
	d.zeros = make([]byte, chunkPlaces*recordSize)
	return nil
}

// remap at least doubles the mapping. Mapping reserves disk space, so a mapping of the whole file
// would take the space of a full one.
func (d *disk) remap(p Place) error {
	chunks := chunkOf(p) + 1
	if d.mapped != nil {
		chunks = max(chunks, 2*(len(d.mapped)-headerSize)/(chunkPlaces*recordSize))
	}
	mapped, unmap, err := sock.MapFile(d.source, int(fileSize(min(chunks*chunkPlaces, d.places))))
	if err != nil {
		return err
	}
	old := d.unmap
	d.mapped, d.unmap = mapped, unmap
	if old != nil {
		return old()
	}
	return nil
}

func (d *disk) has(p Place) bool {
	return int(p) <= d.places && (d.mapped == nil || offset(p+1) <= int64(len(d.mapped)))
}

func (d *disk) reserve(p Place) error {
	if d.mapped == nil || d.reserved[chunkOf(p)] {
		return nil
	}
	if !d.has(p) {
		if err := d.remap(p); err != nil {
			return err
		}
	}
	from := chunkOf(p) * chunkPlaces
	to := min(from+chunkPlaces, d.places)
	if _, err := d.file.WriteAt(d.zeros[:(to-from)*recordSize], offset(Place(from+1))); err != nil {
		return err
	}
	d.reserved[chunkOf(p)] = true
	return nil
}

func (d *disk) markReserved(p Place) {
	if d.mapped != nil {
		d.reserved[chunkOf(p)] = true
	}
}

func chunkOf(p Place) int { return (int(p) - 1) / chunkPlaces }

func (d *disk) read(p []byte, at int64) error {
	if d.mapped == nil {
		_, err := d.file.ReadAt(p, at)
		return err
	}
	return copyMapped(p, d.mapped[at:])
}

func (d *disk) write(p []byte, at int64) error {
	if d.mapped == nil {
		_, err := d.file.WriteAt(p, at)
		return err
	}
	return copyMapped(d.mapped[at:at+int64(len(p))], p)
}

// A fault is an error here, and would otherwise end the process.
func copyMapped(to, from []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface {
				error
				Addr() uintptr
			})
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("statefile: mapping of the file: %w", fault)
		}
	}()
	copy(to, from)
	return nil
}

func (d *disk) close() error {
	var err error
	if d.unmap != nil {
		err = d.unmap()
		d.mapped, d.unmap = nil, nil
	}
	if d.file != nil {
		err = errors.Join(err, d.file.Close())
		d.file = nil
	}
	return err
}

// freePlaces is a tree of bits: one per place, and one above each 64 bits that is set if any of
// them is.
type freePlaces struct {
	levels [][]uint64 // levels[0] has the places; the last has one word
	count  int
}

func newFreePlaces(count int) freePlaces {
	f := freePlaces{count: count}
	for n := count; ; n = (n + 63) / 64 {
		level := make([]uint64, (n+63)/64)
		for i := range level {
			level[i] = ^uint64(0)
		}
		if rest := n % 64; rest != 0 {
			level[len(level)-1] = 1<<rest - 1
		}
		f.levels = append(f.levels, level)
		if len(level) == 1 {
			return f
		}
	}
}

// lowest returns 0 if there is none. The place stays free.
func (f *freePlaces) lowest() Place {
	i := 0
	for at := len(f.levels) - 1; at >= 0; at-- {
		word := f.levels[at][i]
		if word == 0 {
			return 0
		}
		i = i*64 + bits.TrailingZeros64(word)
	}
	return Place(i + 1)
}

// Places beyond the count are never free.
func (f *freePlaces) take(p Place) {
	i := int(p) - 1
	if i >= f.count {
		return
	}
	for _, level := range f.levels {
		level[i/64] &^= 1 << (i % 64)
		if level[i/64] != 0 {
			return
		}
		i /= 64
	}
}

func (f *freePlaces) release(p Place) {
	i := int(p) - 1
	if i >= f.count {
		return
	}
	for _, level := range f.levels {
		level[i/64] |= 1 << (i % 64)
		i /= 64
	}
}
