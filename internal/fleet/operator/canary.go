package operator

import "time"

// CanaryReport is the body of POST /canary: what ferry ping --every has seen in the last hour, or since
// its start.
type CanaryReport struct {
	Name string `json:"name"` // of the canary
	// Interval is the time between two reports in seconds.
	Interval   float64           `json:"interval_seconds"`
	Since      time.Time         `json:"since"`
	Transports []CanaryTransport `json:"transports"`
}

type CanaryTransport struct {
	Transport string `json:"transport"`
	// Region is that of the last allocation; empty: there was none.
	Region  string `json:"region,omitempty"`
	Matches int    `json:"matches"` // those that were played, and those that failed
	Failed  int    `json:"failed"`
	// Median and P99 are the seconds from the call to allocate until the player is linked to the host.
	Median float64 `json:"until_in_median_seconds,omitempty"`
	P99    float64 `json:"until_in_p99_seconds,omitempty"`
	// FailingSince is the first failure after the last success; absent: the last match succeeded.
	// Failure is the step and the reason of the last one.
	FailingSince time.Time `json:"failing_since,omitzero"`
	Failure      string    `json:"failure,omitempty"`
}

type Canary struct {
	CanaryReport
	Reported time.Time `json:"reported"` // when the last report came
}

type Canaries struct {
	Canaries []Canary `json:"canaries"`
}
