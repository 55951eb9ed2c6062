package history

// RefusalText says in words why a message was refused, by its outcome in engine.Stats.
func RefusalText(o string) string {
	for _, r := range Refusals {
		if r.Outcome == o {
			return r.Why
		}
	}
	return o
}

// PrivateSource says why a message from a private network was refused, and what permits it.
const PrivateSource = "from a private network, as behind a container's proxy or a NAT that loops back, while a public address is advertised: allow_private_sources permits them"

// Refusals are the outcomes by which a match of a developer fails, and what to look at.
var Refusals = []struct {
	Outcome string // in engine.Stats.Outcomes or Drops
	Why     string
}{
	{"rejected", "a CONNECT_REQUEST found the host full: allocate with a larger maxConnections"},
	{"error_version", "the message has another version of the protocol than 0"},
	{"error_unauthorized", "a CONNECT_REQUEST with the ticket of another match or player: use the hostConnectionData of your own join"},
	{"error_mismatch", "a message from an address that is not bound to the allocation which it names: BIND comes first, from the same socket"},
	{"error_not_found", "the allocation has ended, or that of the host has: allocate or join again"},
	{"error_not_connected", "there is no link between sender and receiver: CONNECT_REQUEST comes first"},
	{"error_self_connect", "a CONNECT_REQUEST to itself"},
	{"plain", "a plain message from the address and port of a DTLS session, as of a game that has crashed: use another port, or wait until the allocation of the session has ended (idle_timeout)"},
	{"identity", "a BIND in the session of another allocation"},
	{"short", "shorter than a header: not a message of the relay protocol"},
	{"signature", "it does not begin with 0xDA72: not a message of the relay protocol, or DTLS while dtls is off"},
	{"version", "of another version, or a type that no client sends"},
	{"server_type", "a type that only relays send"},
	{"unknown_type", "an unknown type"},
	{"size", "its size is not the one that its type and length field require"},
	{"oversize", "a RELAY that is too large: it has more content than max_content, 1400 bytes by default"},
	{"accept_mode", "a BIND whose accept mode is not 0"},
	{"seal", "connection data that this run of the relay did not issue: allocate or join again"},
	{"ticket", "a BIND with the host's connection data: bind with your own connectionData, connect with hostConnectionData"},
	{"mac", "a BIND whose signature is wrong: HMAC-SHA256 with the allocation's key over all bytes before it"},
	{"nonce", "a BIND with an old nonce: each new BIND needs a higher one"},
	{"endpoint_held", "a BIND from an address at which another player was heard in the last 2 s: use another port"},
	{"busy", "the relay was busy: the client repeats it"},
	{"host_unbound", "a CONNECT_REQUEST to a host that has not bound yet"},
	{"place_held", "a CONNECT_REQUEST to a full host at which the same player was heard in the last 2 s: its old link yields after them"},
	{"peer_unbound", "a RELAY to a player that is not bound at the moment"},
	{"receiver_size", "a RELAY larger than the receiver's transport carries"},
	{"rate", "above a limit: of relayed datagrams or bytes (joiner_datagrams, joiner_bytes, host_datagrams, host_bytes), or of new links"},
	{"unvalidated", "more than may go over UDP to an address that may be forged: the receiver plays from another network than that of its API call (3 bytes for each one from there and 256 kB/s; 5 MB/s to a /24 or /48), or has sent nothing but a BIND (256 KiB); DTLS has no such limit"},
	{"recovering", "the relay has just restarted, and the other side may still come back"},
	{"forbidden", "from an address that the relay refuses: loopback, link-local, one of its own, a port below 1024, or banned"},
	{"private", PrivateSource},
	{"muted", "as messages before it that were answered with an ERROR"},
}
