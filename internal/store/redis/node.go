package redisstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet"
)

// nodeJSON is a node as an entry has it. What a newer version adds is passed
// over, so that versions can be mixed while a fleet is being upgraded.
type nodeJSON struct {
	Region      string         `json:"region"`
	Description string         `json:"description,omitempty"`
	QoS         string         `json:"qos,omitempty"`
	Control     string         `json:"control,omitempty"`
	Endpoints   []endpointJSON `json:"endpoints,omitempty"`
	Seats       int            `json:"seats"`
	Taken       int            `json:"taken"`
	Load        float64        `json:"load"`
	Players     int            `json:"players"`
	Matches     int            `json:"matches"`
	Version     string         `json:"version,omitempty"`
	Draining    bool           `json:"draining,omitempty"`
	Healing     bool           `json:"healing,omitempty"`
	RecoverMS   int64          `json:"recoverMs"`
}

type endpointJSON struct {
	Type     string `json:"type"`
	Network  string `json:"network"`
	Host     string `json:"host"`
	Port     uint16 `json:"port"`
	Reliable bool   `json:"reliable,omitempty"`
	Secure   bool   `json:"secure,omitempty"`
}

func encodeNode(n fleet.Node) ([]byte, error) {
	j := nodeJSON{
		Region: n.Region, Description: n.Description, QoS: n.QoSAddress, Control: n.Control,
		Seats: n.Seats, Taken: n.Taken, Load: n.Load, Players: n.Players, Matches: n.Matches,
		Version: n.Version, Draining: n.Draining, Healing: n.Healing, RecoverMS: milliseconds(n.RecoverFor),
	}
	for _, e := range n.Endpoints {
		j.Endpoints = append(j.Endpoints, endpointJSON{e.ConnectionType, e.Network, e.Host, e.Port, e.Reliable, e.Secure})
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("redisstore: encode the node: %w", err)
	}
	if len(text) > maxValue {
		return nil, fmt.Errorf("redisstore: the node's entry takes %d bytes, at most %d are read: name fewer endpoints", len(text), maxValue)
	}
	return text, nil
}

// entrySlack is what an entry has besides its JSON: a time, a boot, a number.
const entrySlack = 64

// parseEntry reads the entry of a relay: "at:boot:number:json".
func parseEntry(relay, text string, now int64) (fleet.Seen, bool) {
	id, ok := parseID(relay)
	if !ok || len(text) > maxValue+entrySlack {
		return fleet.Seen{}, false
	}
	parts := strings.SplitN(text, ":", 4)
	if len(parts) != 4 {
		return fleet.Seen{}, false
	}
	at, okAt := parseMilliseconds(parts[0])
	boot, okBoot := parseHex(parts[1])
	_, okNumber := parseMilliseconds(parts[2])
	var j nodeJSON
	if !okAt || !okBoot || !okNumber || json.Unmarshal([]byte(parts[3]), &j) != nil {
		return fleet.Seen{}, false
	}
	n := fleet.Node{
		Relay: alloc.RelayID(id), Boot: boot,
		Region: j.Region, Description: j.Description, QoSAddress: j.QoS, Control: j.Control,
		Seats: j.Seats, Taken: j.Taken, Load: j.Load, Players: j.Players, Matches: j.Matches,
		Version: j.Version, Draining: j.Draining, Healing: j.Healing,
		RecoverFor: time.Duration(min(max(j.RecoverMS, 0), maxAge.Milliseconds())) * time.Millisecond,
	}
	for _, e := range j.Endpoints {
		n.Endpoints = append(n.Endpoints, alloc.ServerEndpoint{
			ConnectionType: e.Type, Network: e.Network, Host: e.Host, Port: e.Port, Reliable: e.Reliable, Secure: e.Secure,
		})
	}
	age := min(max(now-at, 0), maxAge.Milliseconds()) // Another server's clock may be behind.
	return fleet.Seen{Node: n, Age: time.Duration(age) * time.Millisecond}, true
}
