package api

// AllocateRequest is the body of POST /v1/allocate.
type AllocateRequest struct {
	// MaxConnections is how many players may join, the host not counted: 1 to
	// the server's ceiling, which is 100 by default.
	MaxConnections int `json:"maxConnections"`
	// Region is the id of a region; empty lets the server choose.
	Region string `json:"region,omitempty"`
}

// JoinCodeRequest is the body of POST /v1/joincode.
type JoinCodeRequest struct {
	AllocationID string `json:"allocationId"`
}

// JoinRequest is the body of POST /v1/join.
type JoinRequest struct {
	JoinCode string `json:"joinCode"`
}
