package api

// Meta is about an answer, not about what was asked.
type Meta struct {
	// RequestID names the request in the server's log.
	RequestID string `json:"requestId"`
	// Status repeats the HTTP status.
	Status int `json:"status"`
}

// Links is a member that the SDK demands of a joincode answer. An empty object
// will do.
type Links struct {
	Next string `json:"next,omitempty"`
}

// AllocationResponse is the answer to allocate (201) and to join (200).
type AllocationResponse struct {
	Meta Meta           `json:"meta"`
	Data AllocationData `json:"data"`
}

// AllocationData is the data of an [AllocationResponse].
type AllocationData struct {
	Allocation Allocation `json:"allocation"`
}

// JoinCodeResponse is the answer to joincode (201; a client takes 200 too).
type JoinCodeResponse struct {
	Meta  Meta         `json:"meta"`
	Links Links        `json:"links"`
	Data  JoinCodeData `json:"data"`
}

// JoinCodeData is the data of a [JoinCodeResponse].
type JoinCodeData struct {
	JoinCode string `json:"joinCode"`
}

// RegionsResponse is the answer to regions (200).
type RegionsResponse struct {
	Meta Meta        `json:"meta"`
	Data RegionsData `json:"data"`
}

// RegionsData is the data of a [RegionsResponse].
type RegionsData struct {
	Regions []Region `json:"regions"`
}
