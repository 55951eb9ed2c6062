// Package proto is the wire of the relay and nothing else: ten messages,
// parsed from bytes and appended to bytes. It does no I/O, reads no clock and
// keeps no state, and it imports only the standard library.
//
// # Messages
//
// Offsets and sizes are in bytes. All messages begin with the same header:
//
//	 0        2        3        4
//	+--------+--------+--------+
//	| DA  72 | 00     | type   |
//	+--------+--------+--------+
//	  signature, version, type; bytes, so no order
//
// The protocol mixes byte orders. The published text says that everything is
// big-endian; real clients write the nonce of BIND and the number of PING
// little-endian, because they copy structures out of the memory of
// little-endian machines, and only the length of RELAY big-endian. This
// package does what real clients do. An allocation id is 16 opaque bytes.
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
//	| header | From: who ends | To: the peer   |
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
// # What is accepted
//
// Every parser demands the exact size: one byte less or more is ErrLength,
// also where a client would be lax. Bytes after the end have no meaning in
// version 0, every known client sends exact sizes, and a relay that forwarded
// or echoed what it did not look at would carry hidden data and could send
// more than it received. For a message with a length field, the size of the
// datagram and the field must agree, so that there is one way to read it, and
// the field is bounded before it is used.
//
// Beyond size and header nothing is judged here. Any accept mode, nonce,
// number, id (zero too) and error code parses, and so do empty connection
// data and an empty payload: the rules about them belong to the engine. The
// MAC is checked by [Signer.Verify], after [ParseBind].
//
// The parsers report the first thing that is wrong, reading from the front:
// [ErrShort], [ErrSignature], [ErrVersion], [ErrType], and only then
// [ErrLength]. A message of another version is never parsed; [ParseType]
// returns its type beside ErrVersion, on which the relay's answer depends.
//
// # Memory
//
// Messages are values. A slice inside one aliases the datagram that it was
// parsed from, as its field says, and is good for as long as that memory is.
// Its capacity ends where it ends, so that appending to it copies instead of
// overwriting the bytes behind. Append writes behind the length of dst and
// never looks further; dst may be nil. No parser and no Append into a buffer
// that is large enough allocates. [Decode] and the String methods do; they are
// for tools and people.
//
// Append panics when the caller gives more connection data or payload than a
// message can hold: there is no correct datagram to write. Who takes such
// bytes from outside checks them against [MaxConnectionData] and [MaxContent].
//
// # Sources
//
// Layouts, sizes and byte orders come from the published "Relay message
// protocol" page, corrected by what Unity Transport 1.5.0 and 2.7.2 do where
// the two differ; the MAC over a BIND was confirmed with the inputs of the
// test mock that ships with 1.5.0. CLOSE is in the published text only. Type 8
// is in the client only (since 2.5.1) and no source gives its body. The golden
// packets in testdata/vectors.json were computed from these layouts by another
// program; they are not captures. HMAC is RFC 2104, the text form of an id is
// RFC 9562.
//
// # QoS probes
//
// They share the relay's UDP port, begin with a byte of their own and are no
// messages: integers are little-endian, the reply is always smaller.
//
//	request, 14 + n:  59, 00, n+1 (u8), title (n bytes), sequence (u8), id (u16), time (u64)
//	response, 13:     95, 00, sequence (u8), id (u16), time (u64)
package proto
