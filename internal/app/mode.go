package app

import (
	"fmt"
	"slices"

	"github.com/ferryrelay/ferry/internal/config"
)

// Mode says what the process is, and for whom it is there.
type Mode uint8

const (
	// Serve is for the public, alone: a relay and its API. Callers need tokens,
	// and all limits hold.
	Serve Mode = iota
	// Dev is for a developer's machine: anybody may call, and the limits of the
	// API and the budgets of ERROR replies are off.
	Dev
	// Relay is for the public, one of a fleet: it relays, and has no API.
	Relay
	// API is for the public, one of a fleet: it answers calls for all relays, and
	// relays nothing.
	API
)

// String returns the name of the command that runs in this mode.
func (m Mode) String() string {
	switch m {
	case Dev:
		return "dev"
	case Relay:
		return "relay"
	case API:
		return "api"
	}
	return "serve"
}

// relays and answers report what the process does, and member whether it does so
// in a fleet.
func (m Mode) relays() bool  { return m != API }
func (m Mode) answers() bool { return m != Relay }
func (m Mode) member() bool  { return m == Relay || m == API }

// What settings are about: to answer calls, to relay, to be one of a fleet, and
// to be the relay or the API in it.
var (
	ofCalls = []string{
		"tokens", "issuers", "quotas", "player_per_minute", "server_per_minute", "address_per_minute",
		"failed_joins_per_minute", "server_failed_joins_per_minute", "max_outstanding",
		"admission_url", "admission_secret_file", "admission_timeout", "admission_fail_open",
	}
	ofRelay = []string{
		"udp", "advertise", "advertise_name", "dtls", "websocket", "allow_private_sources", "siblings",
		"state_dir", "region", "max_allocations", "max_seats", "max_content", "idle_timeout", "host_alone_timeout",
		"hear_timeout", "recover_for", "drain_timeout", "drain_threshold", "workers", "batch", "merge", "receive_delay",
		"joiner_datagrams", "joiner_bytes", "host_datagrams", "host_bytes", "unproven_bytes",
		"max_websockets", "max_address_websockets", "websocket_queue", "websocket_max_message", "dtls_max_message",
		"max_dtls_sessions",
		"overcommit",
	}
	ofFleet = []string{
		"store", "store_password_file", "store_ca", "store_prefix", "cluster_ca", "cluster_cert", "cluster_key",
	}
	ofFleetRelay = []string{"cluster", "cluster_advertise", "region_description"}
	ofFleetAPI   = []string{"region_defaults", "region_hints"}
)

// Unused returns a sentence about each setting that somebody has set and that has
// no effect in that mode. It is none of its errors: machines may share a file.
func Unused(l config.Loaded, mode Mode) (all []string) {
	var idle []string
	if !mode.answers() {
		idle = append(idle, ofCalls...)
	}
	if !mode.relays() {
		idle = append(idle, ofRelay...)
	}
	if !mode.member() {
		idle = append(idle, ofFleet...)
	}
	if mode != Relay {
		idle = append(idle, ofFleetRelay...)
	}
	if mode != API {
		idle = append(idle, ofFleetAPI...)
	}
	for _, key := range idle {
		if l.Set(key) {
			all = append(all, fmt.Sprintf("%s (%s) has no effect in ferry %s", key, l.Source(key), mode))
		}
	}
	slices.Sort(all)
	return all
}
