package api

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// The sizes in bytes of an allocation's members. They repeat those of package proto,
// which this package does not import.
const (
	idLen             = 16
	keyLen            = 64
	maxConnectionData = 255
)

// ErrAnswer is wrapped by the errors about an answer with an expected status but without
// the required members.
var ErrAnswer = errors.New("api: invalid answer")

// Allocation is one player's right to use a relay, as allocate and join return it.
type Allocation struct {
	// AllocationID is the id as the text of a UUID, the argument of joincode.
	AllocationID string `json:"allocationId"`
	// AllocationIDBytes is the id as it is sent over the wire, 16 bytes.
	AllocationIDBytes []byte `json:"allocationIdBytes"`
	// ConnectionData is the caller's own, 1 to 255 bytes.
	ConnectionData []byte `json:"connectionData"`
	// HostConnectionData is the ticket with which the player connects to the host, 1
	// to 255 bytes. Only the answer of join has it.
	HostConnectionData []byte `json:"hostConnectionData,omitempty"`
	// Key signs the BIND of this allocation, 64 bytes.
	Key Key `json:"key"`
	// Region is the id of the relay's region.
	Region string `json:"region"`
	// RelayServer is deprecated, but old clients still require it.
	RelayServer RelayServer `json:"relayServer"`
	// ServerEndpoints are the ways to reach the relay, in the order in which a player should
	// try those of a connection type.
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

// Endpoint returns the first endpoint with the connection type, and whether there is
// one.
func (a Allocation) Endpoint(connectionType string) (ServerEndpoint, bool) {
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType == connectionType {
			return e, true
		}
	}
	return ServerEndpoint{}, false
}

// LogValue returns the id and the region. It leaves out the key, which a handler that
// writes JSON would otherwise log.
func (a Allocation) LogValue() slog.Value {
	return slog.GroupValue(slog.String("allocationId", a.AllocationID), slog.String("region", a.Region))
}

// Validate returns an error that wraps [ErrAnswer] if a required member is missing or has
// the wrong size.
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

const redacted = "[redacted]"

// Key is the 64-byte HMAC key of an allocation. In JSON it is base64. It is assignable to
// and from []byte, and prints as "[redacted]" in every format, so that it is not logged by
// accident.
type Key []byte

// Format writes "[redacted]" for every verb.
func (Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redacted) }

// LogValue returns "[redacted]".
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }
