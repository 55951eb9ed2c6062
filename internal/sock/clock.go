package sock

import "time"

// epoch is when the process loaded this package. It is never written again.
var epoch = time.Now()

// Now returns the monotonic clock in nanoseconds since the process started. It
// is never negative, does not follow changes of the wall clock, and means
// nothing to another process.
func Now() int64 { return int64(time.Since(epoch)) }
