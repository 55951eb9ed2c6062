package api

// AllocateRequest is the body of POST /v1/allocate.
type AllocateRequest struct {
	// MaxConnections is the number of players that may join, besides the host: 1 to
	// the server's maximum, 100 by default.
	MaxConnections int `json:"maxConnections"`
	// Region is the id of a region. If it is empty, the server chooses.
	Region string `json:"region,omitempty"`
	// Family is the address family of the endpoints that come first within their
	// connection type: 4, or 6 for a host that uses IPv6. 0: 4.
	Family int `json:"family,omitempty"`
	// PlayerAddress is the IP address of the player for whom a backend calls, as the backend
	// sees it. Only a token of kind server may name one. The relay then recognises the
	// player's datagrams, as it does for a player that calls itself.
	PlayerAddress string `json:"playerAddress,omitempty"`
	// Player is the name of the player for whom a backend calls, at most 256 bytes; it begins with
	// neither "token-" nor "anonymous-". It is not part of the original API. The relay's limits of
	// one player and a ban concern that player; without a name they concern no player.
	Player string `json:"player,omitempty"`
}

// JoinRequest is the body of POST /v1/join.
type JoinRequest struct {
	JoinCode string `json:"joinCode"`
	// Family is the address family of the endpoints that come first within their
	// connection type, 4 or 6. A backend names that of its player. 0: that of the call,
	// if the server knows that it is the player's, else 4.
	Family        int    `json:"family,omitempty"`
	PlayerAddress string `json:"playerAddress,omitempty"`
	// Player is that of [AllocateRequest]. A player that comes back to a full host gets the place
	// that it had; without a name each join of a backend counts as another player's.
	Player string `json:"player,omitempty"`
}

// MigrateRequest is the body of POST /v1/migrate, which is not part of the original API.
type MigrateRequest struct {
	JoinCode string `json:"joinCode"`
	// HostConnectionData is what join returned to the player, 255 bytes.
	HostConnectionData []byte `json:"hostConnectionData"`
	// Family, PlayerAddress and Player are those of [AllocateRequest]. The ticket is that of
	// Player, if a backend names one.
	Family        int    `json:"family,omitempty"`
	PlayerAddress string `json:"playerAddress,omitempty"`
	Player        string `json:"player,omitempty"`
}

// LeaveRequest is the body of POST /v1/leave, which is not part of the original API.
type LeaveRequest struct {
	AllocationID string `json:"allocationId"` // the host's
	// ConnectionData is what allocate or migrate returned to the host, 255 bytes. A caller whose
	// token many players share needs it.
	ConnectionData []byte `json:"connectionData,omitempty"`
}

// allocationRequest is the body of POST /v1/joincode.
type allocationRequest struct {
	AllocationID string `json:"allocationId"`
}

// ChooseRegionRequest is the body of POST /v1/regions/choose. It is not part of the original API.
type ChooseRegionRequest struct {
	// MaxConnections is that of the host to come, so that a region has room for it. 0: 1.
	MaxConnections int `json:"maxConnections,omitempty"`
	// Players are those of a match, 1 to [MaxChoosePlayers], with what each has measured.
	Players []PlayerMeasurements `json:"players"`
}

// The limits of a [ChooseRegionRequest]: its players, and what one player has measured.
const (
	MaxChoosePlayers      = 100
	MaxChooseMeasurements = 64
)

// PlayerMeasurements is what one player has measured of each region that it reaches.
type PlayerMeasurements struct {
	// Player names the player in the answer, at most 256 bytes; it may be empty.
	Player string `json:"player,omitempty"`
	// Regions has each region once, at most [MaxChooseMeasurements]. A region that is missing, or
	// whose RTT is 0, is not reached.
	Regions []Measurement `json:"regions"`
}

// Measurement is what a player has measured of a region.
type Measurement struct {
	Region string `json:"region"`
	// RTT is the mean round trip in milliseconds, at most 60,000; 0: no answer.
	RTT float64 `json:"rtt"`
	// Loss is the share of probes without an answer, 0 to 1.
	Loss float64 `json:"loss,omitempty"`
}

// ChooseRegionData is what regions/choose answers.
type ChooseRegionData struct {
	// Region is the best one for all players, and Reason a sentence about it for people.
	Region string `json:"region"`
	Reason string `json:"reason"`
	// Regions are all regions that allocate accepts, the best one first.
	Regions []RegionScore `json:"regions"`
}

// RegionScore is how good a region is for all players of a match.
type RegionScore struct {
	Region string `json:"region"`
	// HasRoom is false if no relay of the region can take the match now.
	HasRoom bool `json:"hasRoom"`
	// Players is how many players reach it, Worst the highest latency of one of them, and Mean the
	// mean, in milliseconds: rtt/(1-loss), since what is lost has to be repeated.
	Players int     `json:"players"`
	Worst   float64 `json:"worst,omitempty"`
	Mean    float64 `json:"mean,omitempty"`
	// WorstPlayer is the name of the player with that latency, if it has one.
	WorstPlayer string `json:"worstPlayer,omitempty"`
}

type answerBody[T any] struct {
	Data T `json:"data"`
}

type (
	allocationData struct {
		Allocation Allocation `json:"allocation"`
	}
	joinCodeData struct {
		JoinCode string `json:"joinCode"`
	}
	regionsData struct {
		Regions []Region `json:"regions"`
	}
)

// Region is a location of relays. Its id may be any string.
type Region struct {
	ID          string `json:"id"`
	Description string `json:"description"`
	// QoSAddress is the host:port that answers QoS probes over UDP. It is not part of
	// the original API, which has a separate service for it.
	QoSAddress string `json:"qosAddress,omitempty"`
	// WebSocketURL is the URL of a relay's WebSocket endpoint, wss://host:port/ or ws.
	// It is not part of the original API either.
	WebSocketURL string `json:"webSocketUrl,omitempty"`
}
