//go:build mutants

package mutants

// The wire: exact sizes, byte orders, what is signed.
var inProto = []mutant{
	{
		rule: "PING has exactly 22 bytes",
		file: "proto/ping.go",
		old:  "len(pkt) != PingLen", now: "len(pkt) < PingLen",
		by: protoTest("TestTrailing"),
	},
	{
		rule: "CLOSE has exactly 20 bytes",
		file: "proto/close.go",
		old:  "len(pkt) != CloseLen", now: "len(pkt) < CloseLen",
		by: protoTest("TestTrailing"),
	},
	{
		rule: "the length of connection data in a BIND is that of the datagram",
		file: "proto/bind.go",
		old:  "len(pkt) != BindOverhead+int(pkt[7])", now: "len(pkt) < BindOverhead+int(pkt[7])",
		by: protoTest("TestTrailing"),
	},
	{
		rule: "the length of a RELAY's content is that of the datagram",
		file: "proto/relay.go",
		old:  "int(binary.BigEndian.Uint16(pkt[36:])) == len(pkt)-RelayOverhead", now: "int(binary.BigEndian.Uint16(pkt[36:])) <= len(pkt)-RelayOverhead",
		by: protoTest("TestTrailing"),
	},
	{
		rule: "a RELAY has at most 1472 bytes",
		file: "proto/relay.go",
		old:  "len(pkt) <= maxRelayLen &&", now: "len(pkt) <= maxRelayLen+1 &&",
		by: protoTest("TestRelayLimits"),
	},
	{
		rule: "the nonce of a BIND is little-endian",
		file: "proto/bind.go",
		old:  "binary.LittleEndian.Uint16(pkt[5:])", now: "binary.BigEndian.Uint16(pkt[5:])",
		by: protoTest("TestGolden"),
	},
	{
		rule: "the length of a RELAY's content is big-endian",
		file: "proto/relay.go",
		old:  "binary.BigEndian.AppendUint16(dst, uint16(len(m.Payload)))", now: "binary.LittleEndian.AppendUint16(dst, uint16(len(m.Payload)))",
		by: protoTest("TestGolden"),
	},
	{
		rule: "a type that only servers send is not one of a client",
		file: "proto/header.go",
		old:  "1<<TypeDisconnect | 1<<TypeRelay | 1<<TypeClose", now: "1<<TypeDisconnect | 1<<TypeRelay | 1<<TypeClose | 1<<TypeError",
		by: protoTest("TestTypes"),
	},
	{
		rule: "the signature is that of the whole message",
		file: "proto/sign.go",
		old:  "s.hash.Write(msg)", now: "s.hash.Write(msg[:len(msg)-1])",
		by: protoTest("TestSignerStandard"),
	},
	{
		rule: "a signature is compared to its last byte",
		file: "proto/sign.go",
		old:  "subtle.ConstantTimeCompare(s.mac(pkt[:end], key), pkt[end:])", now: "subtle.ConstantTimeCompare(s.mac(pkt[:end], key)[:16], pkt[end:][:16])",
		by: protoTest("TestVerifyBits"),
	},
	{
		rule: "a key is not printed",
		file: "proto/key.go",
		old:  "func (Key) String() string { return redacted }", now: "func (k Key) String() string { return string(k[:]) }",
		by: protoTest("TestKeySilentText"),
	},
}
