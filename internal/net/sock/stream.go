package sock

import "time"

// StreamInfo is what the kernel says of a TCP connection, from its beginning on.
type StreamInfo struct {
	// WindowClosed is how long data waited here because the peer had no room for it.
	WindowClosed  time.Duration
	Retransmitted uint64 // segments
	// SegmentsSent and SegmentsReceived are segments with data.
	SegmentsSent, SegmentsReceived uint64
}
