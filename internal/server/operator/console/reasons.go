package console

// Reason explains a reason for which datagrams are dropped: what it means that many are, and what
// the operator can do.
type Reason struct {
	Means string `json:"means"`
	Do    string `json:"do"`
}

const (
	foreignProtocol = "Not the relay's protocol: scanners, DTLS while dtls is off, or a flood."
	foreignDo       = "Nothing below the machine's limit. If the kernel drops as well, block the prefixes at the router or provider."
	brokenClient    = "A client that does not follow the protocol, or junk."
	brokenDo        = "If a game of yours sends them, capture its match and compare with docs/protocol.md; otherwise nothing."
)

// reasons has each reason of engine.Stats.Drops, by its name.
var reasons = map[string]Reason{
	"truncated": {
		"Longer than any message of the protocol.",
		"Nothing: a scanner, or another program that has the wrong address.",
	},
	"source": {
		"The kernel gave no source address that can be answered.",
		"Look at what forwards to this port: a proxy or NAT that removes the source.",
	},
	"forbidden": {
		"From a source that no player has, such as this relay's own addresses, loopback or a port below 1024, or one that is banned.",
		"Nothing: bans and forged sources end here. If players are among them, look at Bans.",
	},
	"private": {
		"From private networks: players behind a container's proxy or a NAT that loops back, or forged sources.",
		"If they are players, set allow_private_sources.",
	},
	"plain": {
		"Plain messages from the address of a DTLS session: forged, or a client that falls back to plain UDP.",
		"If a game of yours sends them, let it use one connection type only.",
	},
	"identity": {
		"BINDs in the session of another allocation.",
		"If a game of yours sends them, let it open one session for each allocation; otherwise they are attempts to find keys.",
	},
	"panic": {"A fault of the relay. Each one lost a single datagram.", "Report it with the stack in the log."},
	"short": {foreignProtocol, foreignDo}, "signature": {foreignProtocol, foreignDo},
	"version": {
		"Another version of the protocol, or a type that no client sends: an old or foreign client.",
		"If players are affected, see which client they have; otherwise nothing.",
	},
	"server_type": {
		"Messages that only relays send: reflected answers, or junk.",
		"Nothing: they are never answered, so that no loop can form.",
	},
	"unknown_type": {brokenClient, brokenDo}, "size": {brokenClient, brokenDo},
	"oversize": {
		"Messages with more content than max_content permits.",
		"Lower the largest message of the game, or raise max_content up to 1434.",
	},
	"accept_mode": {
		"BINDs with an accept mode other than 0.",
		"If a game of yours sends them, its client library is not compatible.",
	},
	"seal": {
		"Connection data that this relay did not issue: clients of another relay or of an earlier run, or a flood.",
		"After a move or a lost state_dir, players must allocate again. Otherwise nothing: each costs one decryption, and under load each prefix is limited.",
	},
	"ticket": {
		"BINDs with the host's connection data.",
		"The game mixes up connectionData and hostConnectionData: bind with the first, connect with the second.",
	},
	"mac": {
		"BINDs with wrong signatures: a broken client, or an attacker that tries keys.",
		"Nothing: a key has 512 bits. If all are of one network, ban it below.",
	},
	"nonce": {
		"Old or replayed BINDs: a client that repeats one after it moved, or an attacker that sends what it has recorded.",
		"Nothing: a replay changes nothing. If players cannot come back, their client must raise the nonce with each new BIND.",
	},
	"endpoint_held": {
		"BINDs from the address of another player that is active: forged sources, or a NAT that reuses ports too soon.",
		"Nothing: the player there keeps its place, and an honest one gets in within 3 s.",
	},
	"busy": {
		"Control or its table was too busy for these. Clients repeat them within a second.",
		"If it goes on, add processors or relays, and look at how many allocations are made.",
	},
	"load": {
		"The relay is under load and limits each prefix. Honest players repeat and get in.",
		"Ban the prefixes below that send most, or add relays.",
	},
	"rate": {
		"Above the quota of a player or host, or its rate of new links: a cheater, or a limit that is too low for the game.",
		"If honest matches suffer, raise joiner_datagrams, joiner_bytes, host_datagrams or host_bytes; otherwise kick the player.",
	},
	"unvalidated": {
		"More than may go to an address that has not shown that it receives: an attempt at amplification, or players that play from another network than that of their API call.",
		"Let a backend name the players' addresses, or use dtls, which has no such limit.",
	},
	"recovering": {"For matches that may still come back after the restart.", "Wait: it ends with recover_for."},
	"unbound":    {"CLOSEs for an allocation that is not bound there: forged, or late.", "Nothing: they end no match."},
	"host_unbound": {
		"CONNECT_REQUESTs to a host that is not bound: it has just allocated, or its game is blocked or gone. Players repeat them each second.",
		"If it goes on, look for hosts that are not bound in Matches, and for a firewall in front of them.",
	},
	"place_held": {
		"CONNECT_REQUESTs to a full host where an earlier allocation of the same player is still heard. The player gets that place two seconds after it falls silent.",
		"If it goes on, two machines use one player's token.",
	},
	"peer_unbound": {
		"Messages to a player whose address has been taken by another one, until it binds again.",
		"Nothing, if it ends within seconds. Otherwise look at that player in Matches.",
	},
	"receiver_size": {
		"Messages larger than the transport of their receiver carries.",
		"Set maxMessageSize at the senders: 1363 on udp, 1377 on ws.",
	},
	"muted": {
		"Senders that did not react to three errors, or that repeat one within a second.",
		"Nothing: silence makes most clients bind again.",
	},
	"budget": {
		"Errors that were not sent, so that the relay is no reflector.",
		"Nothing. Many at once are a flood with forged sources: see the other reasons.",
	},
	"stale": {
		"The sender lost its address to another player before the relay came to its message.",
		"Nothing: it binds again.",
	},
}
