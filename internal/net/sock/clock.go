package sock

import "time"

type ClockState struct {
	Known        bool // it could be read
	Synchronized bool // by NTP, PTP or the like
	MaxError     time.Duration
}
