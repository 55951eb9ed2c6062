package sock

import "time"

// ClockState is the state of the system's clock.
type ClockState struct {
	Known        bool // it could be read
	Synchronized bool // by NTP, PTP or the like
	MaxError     time.Duration
}
