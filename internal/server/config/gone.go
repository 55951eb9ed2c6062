package config

import (
	"fmt"
	"strings"
)

// gone has the settings that earlier versions had, and what stands in the place of each. A key of
// a list is LIST.KEY.
var gone = map[string]string{
	"acme_domains":                   "acme: true obtains a certificate for advertise_name or, without it, for the advertised addresses",
	"acme_dir":                       "ACME certificates are in the directory acme of state_dir",
	"acme_email":                     "certificate authorities send no warnings by mail any more",
	"address_per_minute":             "120 requests a minute of an address may be without a valid token",
	"admin_oidc_url":                 "the issuer sends browsers back to the host by which they opened the console",
	"admission_timeout":              "an admission request must be answered within 1 s",
	"batch":                          "a system call has at most 64 datagrams",
	"behind_proxy":                   "trusted_proxies without a certificate says that a reverse proxy terminates TLS",
	"drain_threshold":                "ferry ctl drain --threshold is for one drain",
	"dtls":                           "each UDP address accepts DTLS",
	"dtls_max_message":               "max_content and 38 bytes is the largest message of every transport",
	"failed_joins_per_minute":        "10 unknown join codes a minute of a player are checked, which the length of join codes follows from",
	"hear_timeout":                   "it is three times idle_timeout",
	"hooks_plain_http":               "http:// of admission_url and webhook_url may lead to loopback and private networks",
	"host_migration_silence":         "it is 70 % of idle_timeout",
	"http_idle_timeout":              "a connection to the API is closed after 30 s without a call",
	"issuers.environment_audience":   "the preset unity reads the environment from the audience",
	"issuers.hs256_key":              "hs256_key_file is a file with the key",
	"issuers.kind_claim":             "kind is that of all tokens of an issuer; a backend may have one of tokens",
	"issuers.player_claim":           "the player is the claim sub",
	"key_epoch":                      "the key of connection data changes every week",
	"kubernetes_dir":                 "a scale-down drains the pods that Kubernetes chooses",
	"max_address_connections":        "an address has at most a sixteenth of max_http_connections",
	"max_address_websockets":         "an address has at most a sixteenth of max_websockets",
	"max_outstanding":                "a third of player_per_minute may be reserved and not bound",
	"overcommit":                     "a larger max_seats has the same effect",
	"player_joiners":                 "a player has at most twice player_hosts live joins",
	"player_seats":                   "the hosts of a player have at most player_hosts times max_connections and one seats",
	"proxy_idle_timeout":             "a connection of trusted_proxies is closed after 620 s without a call",
	"region_defaults":                "the first region of a project's regions in quotas is its default",
	"region_hints":                   "a client names a region, which it chooses by measuring them",
	"server_failed_joins_per_minute": "a tenth of server_per_minute may be unknown join codes",
	"siblings":                       "a datagram between two relays causes no others",
	"steering":                       "a worker of worker_cpus gets what its CPU handles if the network cards' interrupts are spread over all of them",
	"store_prefix":                   "all keys begin with ferry:; another fleet at one server has another database number in its store's URL",
	"trace_ratio":                    "the log of an API call has the request id and an incoming traceparent's trace id",
	"trace_url":                      "the log of an API call has the request id and an incoming traceparent's trace id",
	"unvalidated_bytes":              "256 KiB may go to an endpoint that has sent nothing but a BIND",
	"unvalidated_ratio":              "three bytes for each byte from there may go to an endpoint in another network than that of the API call (RFC 9000, section 8)",
	"websocket_max_message":          "a message to a WebSocket has at most 1,386 bytes, which native clients take",
	"websocket_queue":                "a WebSocket has room for 256 messages of 512 bytes",
}

// GoneFlag returns the error for the flag of a setting that no longer exists, nil for any other name.
func GoneFlag(name string) error {
	return goneError(strings.ReplaceAll(name, "-", "_"), "--"+name)
}

// goneError returns the error for a setting that no longer exists, by the name that was typed, nil
// for any other key.
func goneError(key, typed string) error {
	instead, ok := gone[key]
	if !ok {
		return nil
	}
	return fmt.Errorf("%s no longer exists; %s", typed, instead)
}
