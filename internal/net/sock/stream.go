package sock

import "time"

// StreamInfo is what the kernel says of a TCP connection, from its beginning on.
type StreamInfo struct {
	// WindowClosed is how long data waited here because the peer had no room for it.
	WindowClosed  time.Duration
	Retransmitted uint64 // segments
	// SegmentsSent and SegmentsReceived are segments with data.
	SegmentsSent, SegmentsReceived uint64
	// ReceiveWindow is how many bytes the peer may send; 0 as well if the kernel, before 6.2,
	// does not say.
	ReceiveWindow int
}
