// Package proto encodes and decodes the datagrams of the Unity Relay protocol: ten
// messages and the QoS probe. It does no I/O, keeps no state and imports only the
// standard library.
//
//	switch t, err := proto.ParseType(pkt); {
//	case err != nil:
//		return err // not a message of this protocol
//	case t == proto.TypeRelay:
//		m, err := proto.ParseRelay(pkt) // m.Payload aliases pkt
//	}
//	pkt = proto.Ping{ID: id, Number: 1}.Append(pkt[:0])
//
//	var s proto.Signer
//	pkt = s.Append(pkt[:0], proto.Bind{Nonce: 1, ConnectionData: data}, &key)
//	ok := s.Verify(pkt, &key)
//
// # Messages
//
// Offsets and sizes are in bytes. All messages begin with the same header:
//
//	 0        2        3        4
//	+--------+--------+--------+
//	| DA  72 | 00     | type   |
//	+--------+--------+--------+
//	  signature, version, type: single bytes
//
// The protocol mixes byte orders. The published text says that all integers are
// big-endian, but real clients write the nonce of BIND and the number of PING
// little-endian, as they lie in the memory of the client's machine, and only the
// length of RELAY big-endian. This package does what real clients do. An
// allocation id is 16 opaque bytes.
//
// BIND (0), client to relay, 40 + n, always 295 from real clients:
//
//	 0        4      5       7     8                8+n          40+n
//	+--------+------+-------+-----+----------------+------------+
//	| header | mode | nonce | n   | connection data| MAC        |
//	+--------+------+-------+-----+----------------+------------+
//	           u8     u16 LE  u8    n bytes          32 bytes
//	MAC = HMAC-SHA256(64-byte key, bytes 0 to 8+n)
//
// BIND_RECEIVED (1), relay to client, 4:
//
//	 0        4
//	+--------+
//	| header |
//	+--------+
//
// PING (2), client to relay and echoed, 22:
//
//	 0        4               20       22
//	+--------+---------------+--------+
//	| header | id of sender  | number |
//	+--------+---------------+--------+
//	           16 bytes        u16 LE
//
// CONNECT_REQUEST (3), client to relay, 21 + n, always 276 from real clients:
//
//	 0        4                20     21                   21+n
//	+--------+----------------+------+---------------------+
//	| header | id of sender   | n    | connection data     |
//	+--------+----------------+------+---------------------+
//	           16 bytes         u8     n bytes
//
// ACCEPTED (6) and REJECTED (8), relay to client, 36:
//
//	 0        4                20               36
//	+--------+----------------+----------------+
//	| header | From: the host | To: the joiner |
//	+--------+----------------+----------------+
//	           16 bytes         16 bytes
//
// DISCONNECT (9), client to relay, forwarded and echoed, 36:
//
//	 0        4                20               36
//	+--------+----------------+----------------+
//	| header | From: sender   | To: the peer   |
//	+--------+----------------+----------------+
//	           16 bytes         16 bytes
//
// RELAY (10), client to relay and forwarded unchanged, 38 + n:
//
//	 0        4          20         36       38          38+n
//	+--------+----------+----------+--------+-----------+
//	| header | From     | To       | n      | payload   |
//	+--------+----------+----------+--------+-----------+
//	           16 bytes   16 bytes   u16 BE   n bytes
//
// CLOSE (11), client to relay, 20:
//
//	 0        4               20
//	+--------+---------------+
//	| header | id of sender  |
//	+--------+---------------+
//	           16 bytes
//
// ERROR (12), relay to client, 21:
//
//	 0        4               20     21
//	+--------+---------------+------+
//	| header | id            | code |
//	+--------+---------------+------+
//	           16 bytes        u8
//
// Types 4, 5 and 7 are reserved.
//
// # Validation
//
// Every parser requires the exact size: one byte less or more is ErrLength, even
// where a client would accept it. Bytes after the end have no meaning in version 0
// and no known client sends any; a relay that forwarded or echoed them would carry
// hidden data and could send more than it received. If a message has a length
// field, it must agree with the size of the datagram.
//
// The parsers check size and header only. Every accept mode, nonce, number, id
// (zero included) and error code is valid, and so are empty connection data and an
// empty payload; the engine has the rules about them. [Signer.Verify] checks the
// MAC.
//
// The parsers report the first error from the front: [ErrShort], [ErrSignature],
// [ErrVersion], [ErrType], then [ErrLength]. They reject messages of another
// version; [ParseType] returns the type of such a message with ErrVersion, because
// the relay's answer depends on it.
//
// # Memory
//
// Messages are values. A slice in a parsed message aliases the datagram, as its
// field says. Its capacity equals its length, so that appending to it copies and
// does not overwrite the bytes behind. Append appends to dst, which may be nil. No
// parser allocates, nor does Append into a buffer that is large enough. [Decode]
// and the String methods allocate; they are for tools and logs.
//
// Append panics if connection data or payload is longer than a message can hold.
// A caller checks data that it did not make itself against [MaxConnectionData] and
// [MaxContent].
//
// # Sources
//
// Layouts, sizes and byte orders are those of Unity's page "Relay message
// protocol", except where Unity Transport 1.5.0 and 2.7.2 differ from it. The MAC of
// BIND was confirmed with the inputs of the test mock in 1.5.0. Only the page has
// CLOSE. Only the client, since 2.5.1, has type 8, and no source describes its body.
// Another program computed the golden packets in testdata/vectors.json from these
// layouts; they are not captures. HMAC is RFC 2104, the text form of an id RFC 9562.
//
// # QoS probes
//
// QoS probes use the relay's UDP port and have another first byte. Integers are
// little-endian, and a response is smaller than its request.
//
//	request, 14 + n:  59, 00, n+1 (u8), title (n bytes), sequence (u8), id (u16), time (u64)
//	response, 13:     95, 00, sequence (u8), id (u16), time (u64)
package proto
