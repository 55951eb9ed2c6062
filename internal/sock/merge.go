package sock

import (
	"sync/atomic"
	"syscall"
)

// Merging: datagrams of one batch that go to one endpoint and have one size
// leave as one message that the kernel cuts apart again (UDP_SEGMENT, udp(7)).
// The kernel then walks its stack once for all of them. They stay in order, and
// only the last may be shorter.
//
//	datagram   what Add takes
//	run        datagrams to one endpoint that leave as one message
//	message    what the kernel takes: a run, or a datagram alone
const (
	// maxRunBytes keeps a run within the length field of an IP packet.
	maxRunBytes = 65_000
	// minSegment is the size in bytes below which a refusal switches merging off
	// altogether.
	minSegment = 64
)

// segmentLimit is the largest segment that may be merged on a socket, in bytes;
// zero switches merging off. Every sender of the socket reads it.
type segmentLimit struct{ atomic.Uint32 }

// mergeRefused reports whether errno may mean that a run cannot leave merged.
func mergeRefused(errno syscall.Errno) bool {
	return errno == syscall.EIO || errno == syscall.EINVAL || errno == syscall.EMSGSIZE
}

// lower learns from a run that the kernel refused and took one by one. EIO
// means that the device cannot checksum, so nothing can be merged there. EINVAL
// and EMSGSIZE mean that the segment does not fit the device, so that no other
// of that size will. Neither is forgotten: a refused run costs a call each time.
func (l *segmentLimit) lower(errno syscall.Errno, segment int) {
	limit := uint32(segment - 1)
	if errno == syscall.EIO || segment <= minSegment {
		limit = 0
	}
	for old := l.Load(); limit < old; old = l.Load() {
		if l.CompareAndSwap(old, limit) {
			return
		}
	}
}
