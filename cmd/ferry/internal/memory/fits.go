package memory

const (
	mebi = 1 << 20
	// base is what the process takes before the first allocation, in bytes.
	base = 32 * mebi
	// perAllocation is what one takes in bytes: 300 in the relay's table, 48 in
	// the state file, up to 100 for a join code.
	perAllocation = 448
)

// Fits returns how many allocations a relay can hold and still be calm, within
// a limit in bytes, when its sockets' buffers may take as many as buffers. A
// fifth of the memory is theirs in any case: buffers are seldom full.
func Fits(limit, buffers int64) int {
	room := max(calm(limit)-base-buffers, limit/5)
	return int(room / perAllocation)
}

// line is the use at which nothing new is taken on: four fifths.
func line(limit int64) int64 { return limit / 5 * 4 }

// calm is the use below which it is taken on again: three quarters.
func calm(limit int64) int64 { return limit / 4 * 3 }

// soft is the use at which Go's runtime collects whatever that costs: nine
// tenths.
func soft(limit int64) int64 { return limit / 10 * 9 }
