package api

// The codes of the Relay Allocations API (protocol.md 4.4). Every other error
// has the code [StatusCode] of its HTTP status.
const (
	CodeNone               = 15000
	CodeInvalidRequest     = 15001
	CodeInactiveProject    = 15006
	CodeRegionNotFound     = 15007
	CodeAllocationNotFound = 15008
	CodeJoinCodeNotFound   = 15009
	CodeNoSuitableRelay    = 15010
)

// StatusCode returns the code of an error that has no other: 15000 plus its
// HTTP status, such as 15401 or 15429.
func StatusCode(status int) int { return CodeNone + status }
