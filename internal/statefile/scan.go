package statefile

import (
	"bytes"
	"fmt"
	"io"
	"slices"
)

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
	ours    bool   // the header is intact and this relay's
	err     error  // why the file is not complete
	found   []Found
	damaged []Place
	redo    Place     // place that was torn and is in the journal; 0: none
	redone  rawRecord // what it was to hold
}

// scanFile reads a whole file of size bytes. Even if the header is damaged it
// looks for records, for their checksums tell whose they are.
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
			s.ours = s.head.relay == relay
			s.err = s.head.judge(relay, machine, size)
		}
	}
	var torn Place
	var after rawRecord
	if s.ours {
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

// worthless reports whether nothing in the file is this relay's.
func (s *scan) worthless() bool { return !s.ours && len(s.found) == 0 }

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
