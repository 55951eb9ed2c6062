package store

import "github.com/ferryrelay/ferry/proto"

// entry is a code and its host, 32 bytes without a pointer.
type entry struct {
	codeKey
	host proto.AllocationID
}

// chunkLen is the number of entries that the slab grows by: 32 KiB, so that an
// idle store is small and growing one never copies.
const chunkLen = 1024

// slab holds entries by number. Numbers that were freed are given out again.
// The zero value is empty.
type slab struct {
	chunks []*[chunkLen]entry
	used   int // numbers given out at least once
	freed  int // first of the chain of free entries, plus one; 0 means none
}

func (s *slab) at(n int) *entry { return &s.chunks[n/chunkLen][n%chunkLen] }

// add stores e and returns its number.
func (s *slab) add(e entry) int {
	n := s.freed - 1
	switch {
	case n >= 0:
		s.freed = int(s.at(n).code)
	default:
		n = s.used
		if n == len(s.chunks)*chunkLen {
			s.chunks = append(s.chunks, new([chunkLen]entry))
		}
		s.used++
	}
	*s.at(n) = e
	return n
}

// free takes entry n out. A free entry names the next one in its code.
func (s *slab) free(n int) {
	*s.at(n) = entry{codeKey: codeKey{code: uint64(s.freed)}}
	s.freed = n + 1
}
