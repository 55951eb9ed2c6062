//go:build linux && !sockportable

package sock

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"syscall"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"golang.org/x/sys/unix"
)

// maxRun is the largest number of datagrams in a run: UDP_MAX_SEGMENTS of
// kernels before 6.9; later ones take 128.
const maxRun = 64

// canMerge reports whether a socket may merge: the kernel has UDP_SEGMENT, and is
// none of those that corrupt runs of equal datagrams (7.0 to 7.1.4;
// tailscale/tailscale#20547).
func canMerge(fd int) bool {
	if _, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT); err != nil {
		return false
	}
	var name unix.Utsname
	return unix.Uname(&name) != nil || !corruptsRuns(unix.ByteSliceToString(name.Release[:]))
}

func corruptsRuns(release string) bool {
	var v [3]int
	for i, part := range strings.SplitN(release, ".", 3) {
		for _, c := range part {
			if c < '0' || c > '9' {
				break
			}
			v[i] = v[i]*10 + int(c-'0')
		}
	}
	return v[0] == 7 && (v[1] == 0 || v[1] == 1 && v[2] <= 4)
}

// run is the message that datagrams to one endpoint share. Its first datagram
// is in SendBatch.iovs, as that of a message of one datagram: most are.
type run struct {
	to         endpoint.Endpoint
	head, last int32 // datagrams that joined, linked by merger.next
	count      int32
	segment    int32 // size of every datagram but the last
	bytes      int32
	closed     bool // the last one was shorter, or the run is full
}

// merger finds the run of a datagram. It belongs to its SendBatch.
type merger struct {
	limit  *segmentLimit
	runs   []run    // by message
	cells  []uint32 // by hash of the endpoint: generation<<16 | message
	round  uint32   // generation of the present batch
	secret uint64
	joined int                     // datagrams in parts
	parts  []unix.Iovec            // datagrams that joined a run, as they came
	next   []int32                 // of those: the next one of its run
	gather []unix.Iovec            // the parts of merged runs, in order of the messages
	narrow [narrowPaths]narrowPath // by hash of the endpoint; the newer of two stays
}

// A path of IPv6 may take less than the interface by which it begins. The kernel fragments
// a datagram that its path does not take, and refuses a run of them.
const (
	// minPathSegment is what every path takes: an IP packet of 1,280 bytes.
	minPathSegment = 1280 - 40 - 8
	narrowPaths    = 256
	// narrowRetry is how many datagrams leave alone until the kernel is asked again, which
	// forgets what it has learnt of a path after 10 minutes.
	narrowRetry = 4096
)

type narrowPath struct {
	to      endpoint.Endpoint
	segment int32
	retryIn int32 // datagrams
}

func (m *merger) isNarrow(to endpoint.Endpoint, n int32) bool {
	p := &m.narrow[m.hash(to)%narrowPaths]
	if p.to != to || n < p.segment {
		return false
	}
	if p.retryIn--; p.retryIn == 0 {
		*p = narrowPath{}
	}
	return true
}

// noteRefusedMerge handles that the kernel refused run i as one message and took its datagrams
// one by one, so that it is not asked in vain for each run. Over IPv6 the destination may be
// the reason.
func (b *SendBatch) noteRefusedMerge(i int, errno syscall.Errno) {
	m, r := b.merger, &b.merger.runs[i]
	if !b.v4 && errno != syscall.EIO && r.segment > minPathSegment {
		m.narrow[m.hash(r.to)%narrowPaths] = narrowPath{r.to, r.segment, narrowRetry}
		return
	}
	m.limit.lower(errno, int(r.segment))
}

// minSegment is the size in bytes below which a refusal switches merging off altogether.
const minSegment = 64

// lower lowers the limit after a refused run. EIO means that the device cannot checksum, so
// nothing can be merged there. EINVAL and EMSGSIZE mean that the segment does not fit the
// device, so that no other of that size will. The limit never rises again: a refused run
// costs a call each time.
func (l *segmentLimit) lower(errno syscall.Errno, segment int) {
	limit := uint32(segment - 1)
	if errno == syscall.EIO || segment <= minSegment {
		limit = 0
	}
	for old := l.bytes.Load(); limit < old; old = l.bytes.Load() {
		if l.bytes.CompareAndSwap(old, limit) {
			return
		}
	}
}

func newMerger(limit *segmentLimit, max int) *merger {
	size := 2
	for size < 2*max {
		size *= 2
	}
	return &merger{
		limit: limit, runs: make([]run, max), parts: make([]unix.Iovec, max), next: make([]int32, max),
		gather: make([]unix.Iovec, max), cells: make([]uint32, size), round: 1, secret: rand.Uint64() | 1,
	}
}

// merge adds a datagram to a run, or reports false when it must begin message
// fresh.
func (m *merger) merge(to endpoint.Endpoint, pkt []byte, fresh int) (joined bool) {
	at, mask := m.hash(to), uint64(len(m.cells)-1)
	for ; m.cells[at&mask]>>16 == m.round; at++ {
		r := &m.runs[m.cells[at&mask]&0xFFFF]
		if r.to == to {
			if r.grow(int32(len(pkt))) {
				m.append(r, pkt)
				return true
			}
			break // A new run for this endpoint takes the cell.
		}
	}
	m.cells[at&mask] = m.round<<16 | uint32(fresh)
	r := &m.runs[fresh]
	r.to, r.count, r.segment, r.bytes = to, 1, int32(len(pkt)), int32(len(pkt))
	r.closed = len(pkt) == 0 || uint32(len(pkt)) > m.limit.bytes.Load() ||
		r.segment > minPathSegment && m.isNarrow(to, r.segment)
	return false
}

func (m *merger) append(r *run, pkt []byte) {
	d := int32(m.joined)
	m.joined++
	m.parts[d].Base = base(pkt)
	m.parts[d].SetLen(len(pkt))
	if r.count == 2 {
		r.head = d
	} else {
		m.next[r.last] = d
	}
	r.last = d
}

// grow adds a datagram of n bytes to the run, if it may follow. An empty one
// cannot be cut off a message.
func (r *run) grow(n int32) bool {
	if r.closed || n == 0 || n > r.segment || r.bytes+n > maxRunBytes {
		return false
	}
	r.count++
	r.bytes += n
	r.closed = n < r.segment || r.count == maxRun
	return true
}

func base(pkt []byte) *byte {
	if len(pkt) == 0 {
		return nil
	}
	return &pkt[0]
}

func (m *merger) hash(to endpoint.Endpoint) uint64 {
	x := (to.Hi ^ to.Lo ^ to.Tail*0x9E3779B97F4A7C15) * m.secret
	return x ^ x>>32
}

func (m *merger) reset() {
	for i := range m.parts[:m.joined] {
		m.parts[i].Base = nil
	}
	m.joined = 0
	m.round++
	if m.round == 1<<16 {
		clear(m.cells)
		m.round = 1
	}
}

const segmentLen = 2 // UDP_SEGMENT holds a uint16

func initSegment(slot []byte) {
	if cmsgLevelAt == 8 {
		binary.NativeEndian.PutUint64(slot, uint64(unix.CmsgLen(segmentLen)))
	} else {
		binary.NativeEndian.PutUint32(slot, uint32(unix.CmsgLen(segmentLen)))
	}
	binary.NativeEndian.PutUint32(slot[cmsgLevelAt:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(slot[cmsgTypeAt:], unix.UDP_SEGMENT)
}

func putSegment(slot []byte, size int) {
	binary.NativeEndian.PutUint16(slot[unix.CmsgLen(0):], uint16(size))
}
