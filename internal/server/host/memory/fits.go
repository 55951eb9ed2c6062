package memory

const (
	mebi = 1 << 20
	// base is what the process takes before the first allocation, in bytes.
	base = 32 * mebi
	// perAllocation is what one takes in bytes: 302 in the relay's table, 48 in
	// the state file, up to 106 for a join code and the counts of its player.
	perAllocation = 456
	// perSession is what a session of DTLS takes (engine/dtls, TestFootprint).
	perSession = 2 << 10
	// perWebSocket is what one takes that nothing is queued for: two goroutines,
	// the buffers of HTTP and ours.
	perWebSocket = 32 << 10
)

// Transports is the memory of players that connect by DTLS or WebSocket.
type Transports struct {
	Sessions   int   // of DTLS, at once
	WebSockets int   // at once
	Queue      int64 // the most bytes that wait for one WebSocket, here and in the kernel
}

// Fits returns how many allocations a relay can hold within a limit in bytes, if its
// socket buffers may take as many bytes as buffers. Each allocation counts with a DTLS
// session, up to the maximum of sessions. WebSockets are few and expensive, and count as
// if all were open with full queues. At least a fifth of the memory is for allocations and
// sessions, since buffers and queues are seldom full.
func Fits(limit, buffers int64, w Transports) int {
	sockets := int64(w.WebSockets) * (perWebSocket + w.Queue)
	room := max(calm(limit)-base-buffers-sockets, limit/5)
	sessions := int64(w.Sessions)
	if n := room / (perAllocation + perSession); n <= sessions {
		return int(n)
	}
	return int((room - sessions*perSession) / perAllocation)
}

// Needs returns about how many bytes a process takes for that many allocations and sessions of DTLS.
func Needs(allocations, sessions int) int64 {
	return base + int64(allocations)*perAllocation + int64(sessions)*perSession
}

// line is the use at which nothing new is taken on: four fifths.
func line(limit int64) int64 { return limit / 5 * 4 }

// calm is the use below which it is taken on again: three quarters.
func calm(limit int64) int64 { return limit / 4 * 3 }

// soft is the use at which Go's runtime collects whatever that costs: nine
// tenths.
func soft(limit int64) int64 { return limit / 10 * 9 }
