package api

import (
	"errors"
	"fmt"
	"log/slog"
)

// The sizes in bytes of what an allocation carries. They repeat those of
// package proto, which a leaf may not import.
const (
	idLen             = 16
	keyLen            = 64
	maxConnectionData = 255
)

// ErrAnswer is wrapped by the errors about an answer that has the right status
// but not the members that the API requires.
var ErrAnswer = errors.New("api: the answer is not as the API requires")

// Allocation is a place on a relay, as allocate and join return it.
type Allocation struct {
	// AllocationID is the id as the text of a UUID; joincode takes it.
	AllocationID string `json:"allocationId"`
	// AllocationIDBytes is the id as it goes over the wire, 16 bytes.
	AllocationIDBytes []byte `json:"allocationIdBytes"`
	// ConnectionData is the caller's own, 1 to 255 bytes.
	ConnectionData []byte `json:"connectionData"`
	// HostConnectionData is the ticket to the host, 1 to 255 bytes. Only an
	// answer of join has it: a host uses its own connection data.
	HostConnectionData []byte `json:"hostConnectionData,omitempty"`
	// Key signs the BIND of this allocation, 64 bytes.
	Key Key `json:"key"`
	// Region is the id of the region that the relay stands in.
	Region string `json:"region"`
	// RelayServer is deprecated, but old clients still demand it.
	RelayServer RelayServer `json:"relayServer"`
	// ServerEndpoints are the ways to reach the relay, in no order.
	ServerEndpoints []ServerEndpoint `json:"serverEndpoints"`
}

// RelayServer is the address of a relay's UDP endpoint in its deprecated form.
type RelayServer struct {
	IPv4 string `json:"ipV4"`
	Port int    `json:"port"`
}

// ServerEndpoint is one way to reach a relay.
type ServerEndpoint struct {
	// ConnectionType is "udp", "dtls", "ws" or "wss".
	ConnectionType string `json:"connectionType"`
	// Network is "udp" or "tcp".
	Network  string `json:"network"`
	Reliable bool   `json:"reliable"`
	Secure   bool   `json:"secure"`
	// Host is an IP literal for udp and dtls, a name for wss.
	Host string `json:"host"`
	Port int    `json:"port"`
}

// Endpoint returns the first endpoint of the connection type, and whether
// there is one.
func (a Allocation) Endpoint(connectionType string) (ServerEndpoint, bool) {
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType == connectionType {
			return e, true
		}
	}
	return ServerEndpoint{}, false
}

// LogValue names the allocation and leaves out its key, which a handler that
// writes JSON would otherwise spell out.
func (a Allocation) LogValue() slog.Value {
	return slog.GroupValue(slog.String("allocationId", a.AllocationID), slog.String("region", a.Region))
}

// Validate reports what keeps the allocation from being used: a member that is
// missing or has the wrong size. The error wraps [ErrAnswer].
func (a Allocation) Validate() error {
	switch {
	case a.AllocationID == "":
		return missing("allocationId")
	case len(a.AllocationIDBytes) != idLen:
		return wrongSize("allocationIdBytes", len(a.AllocationIDBytes))
	case len(a.Key) != keyLen:
		return wrongSize("key", len(a.Key))
	case len(a.ConnectionData) == 0 || len(a.ConnectionData) > maxConnectionData:
		return wrongSize("connectionData", len(a.ConnectionData))
	case len(a.HostConnectionData) > maxConnectionData:
		return wrongSize("hostConnectionData", len(a.HostConnectionData))
	case len(a.ServerEndpoints) == 0:
		return missing("serverEndpoints")
	}
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType == "" || e.Host == "" || e.Port < 1 || e.Port > 65535 {
			return fmt.Errorf("%w: an endpoint without connection type, host or port", ErrAnswer)
		}
	}
	return nil
}

func missing(member string) error {
	return fmt.Errorf("%w: %s is missing", ErrAnswer, member)
}

func wrongSize(member string, n int) error {
	return fmt.Errorf("%w: %s has %d bytes", ErrAnswer, member, n)
}
