package api

// Region is a place where relays stand. Its id is a free string.
type Region struct {
	ID          string `json:"id"`
	Description string `json:"description"`
	// QoSAddress is where the region answers QoS probes, host:port over UDP. It
	// is an addition of ours: the original has a service of its own for it.
	QoSAddress string `json:"qosAddress,omitempty"`
	// WebSocketURL is where a relay of it takes WebSockets, wss://host:port/ or
	// ws. It is an addition of ours as well.
	WebSocketURL string `json:"webSocketUrl,omitempty"`
}
