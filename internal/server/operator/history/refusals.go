package history

import "github.com/ferryrelay/ferry/engine"

// RefusalText says in words why a message was refused.
func RefusalText(o engine.Outcome) string {
	for _, r := range Refusals {
		if r.Outcome == o {
			return r.Why
		}
	}
	return o.String()
}

// PrivateSource says why a message from a private network was refused, and what permits it.
const PrivateSource = "from a private network, as behind a container's proxy or a NAT that loops back, while a public address is advertised: allow_private_sources permits them"

// Refusals are the outcomes by which a match of a developer fails, and what to look at.
var Refusals = []struct {
	Outcome engine.Outcome
	Why     string
}{
	{engine.OutRejected, "a CONNECT_REQUEST found the host full: allocate with a larger maxConnections"},
	{engine.OutErrorVersion, "the message has another version of the protocol than 0"},
	{engine.OutErrorUnauthorized, "a CONNECT_REQUEST with the ticket of another match or player: use the hostConnectionData of your own join"},
	{engine.OutErrorMismatch, "a message from an address that is not bound to the allocation which it names: BIND comes first, from the same socket"},
	{engine.OutErrorNotFound, "the allocation has ended, or that of the host has: allocate or join again"},
	{engine.OutErrorNotConnected, "there is no link between sender and receiver: CONNECT_REQUEST comes first"},
	{engine.OutErrorSelf, "a CONNECT_REQUEST to itself"},
	{engine.DropPlain, "a plain message from the address of a DTLS session"},
	{engine.DropIdentity, "a BIND in the session of another allocation"},
	{engine.DropShort, "shorter than a header: not a message of the relay protocol"},
	{engine.DropSignature, "it does not begin with 0xDA72: not a message of the relay protocol, or DTLS while dtls is off"},
	{engine.DropVersion, "of another version, or a type that no client sends"},
	{engine.DropServerType, "a type that only relays send"},
	{engine.DropUnknownType, "an unknown type"},
	{engine.DropSize, "its size is not the one that its type and length field require"},
	{engine.DropOversize, "a RELAY that is too large: it has more content than max_content, 1400 bytes by default"},
	{engine.DropAcceptMode, "a BIND whose accept mode is not 0"},
	{engine.DropSeal, "connection data that this run of the relay did not issue: allocate or join again"},
	{engine.DropTicket, "a BIND with the host's connection data: bind with your own connectionData, connect with hostConnectionData"},
	{engine.DropMAC, "a BIND whose signature is wrong: HMAC-SHA256 with the allocation's key over all bytes before it"},
	{engine.DropNonce, "a BIND with an old nonce: each new BIND needs a higher one"},
	{engine.DropEndpointHeld, "a BIND from an address at which another player was heard in the last 2 s: use another port"},
	{engine.DropBusy, "the relay was busy: the client repeats it"},
	{engine.DropHostUnbound, "a CONNECT_REQUEST to a host that has not bound yet"},
	{engine.DropPlaceHeld, "a CONNECT_REQUEST to a full host at which the same player was heard in the last 2 s: its old link yields after them"},
	{engine.DropPeerUnbound, "a RELAY to a player that is not bound at the moment"},
	{engine.DropReceiverSize, "a RELAY larger than the receiver's transport carries"},
	{engine.DropRate, "above a limit: of relayed datagrams or bytes (joiner_datagrams, joiner_bytes, host_datagrams, host_bytes), or of new links"},
	{engine.DropUnvalidated, "more than may go over UDP to an address that may be forged: the receiver plays from another network than that of its API call (3 bytes for each one from there, unvalidated_ratio, and 256 kB/s; 2 MB/s to a /24 or /48), or has sent nothing but a BIND (unvalidated_bytes); DTLS has no such limit"},
	{engine.DropRecovering, "the relay has just restarted, and the other side may still come back"},
	{engine.DropForbidden, "from an address that the relay refuses: loopback, link-local, one of its own, a port below 1024, or banned"},
	{engine.DropPrivate, PrivateSource},
	{engine.DropMuted, "as messages before it that were answered with an ERROR"},
}
