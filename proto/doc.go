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
// docs/protocol.md has the byte diagrams. Sizes are in bytes; n is the length of connection
// data or payload.
//
//	 0  BIND             client to relay                     40 + n, 295 from real clients
//	 1  BIND_RECEIVED    relay to client                     4
//	 2  PING             client to relay, echoed             22
//	 3  CONNECT_REQUEST  client to relay                     21 + n, 276 from real clients
//	 6  ACCEPTED         relay to client                     36
//	 8  REJECTED         relay to client                     36
//	 9  DISCONNECT       client to relay, forwarded, echoed  36
//	10  RELAY            client to relay, forwarded          38 + n
//	11  CLOSE            client to relay                     20
//	12  ERROR            relay to client                     21
//
// The published text says that all integers are big-endian, but real clients write the
// nonce of BIND and the number of PING little-endian, and only the length of RELAY
// big-endian. This package does what real clients do.
//
// # Validation
//
// Every parser requires the exact size, and a length field that agrees with it: one
// byte less or more is ErrLength. Bytes after the end have no meaning, and a relay that
// forwarded or echoed them would carry hidden data.
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
// A slice in a parsed message aliases the datagram. Its capacity equals its length, so
// that appending to it copies. No parser allocates, nor does Append into a buffer that
// is large enough. [Decode] and the String methods allocate; they are for tools and logs.
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
// Another program computed the golden packets in docs/vectors.json from these
// layouts; they are not captures. HMAC is RFC 2104, the text form of an id RFC 9562.
package proto
