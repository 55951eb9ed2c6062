package utp

// pool keeps the buffers of packets that wait for an acknowledgement or for a
// packet before them. Two sizes, because most such packets are small and a
// window of large ones would cost a hundred kilobytes per connection.
type pool struct {
	small, large [][]byte
}

const (
	smallPacket = 256  // bytes
	maxSpare    = 4096 // buffers of each size that are kept after a burst; 6 MB
)

// hold returns a copy of the bytes in a buffer of the pool. There are at most
// MaxDatagram bytes.
func (p *pool) hold(head, rest []byte) []byte {
	list, size := &p.small, smallPacket
	if len(head)+len(rest) > smallPacket {
		list, size = &p.large, MaxDatagram
	}
	var buf []byte
	if n := len(*list); n > 0 {
		buf = (*list)[n-1]
		*list = (*list)[:n-1]
	} else {
		buf = make([]byte, 0, size)
	}
	return append(append(buf, head...), rest...)
}

// release takes a buffer of hold back.
func (p *pool) release(buf []byte) {
	list := &p.small
	if cap(buf) > smallPacket {
		list = &p.large
	}
	if len(*list) < maxSpare {
		*list = append(*list, buf[:0])
	}
}
