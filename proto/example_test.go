package proto_test

import (
	"fmt"

	"github.com/ferryrelay/ferry/proto"
)

// A relay reads the type first and then parses the messages that it handles.
func ExampleParseType() {
	pkt := proto.Ping{ID: proto.AllocationID{15: 1}, Number: 1}.Append(nil)

	kind, err := proto.ParseType(pkt)
	if err != nil {
		fmt.Println("drop:", err)
		return
	}
	switch kind {
	case proto.TypePing:
		ping, err := proto.ParsePing(pkt)
		fmt.Println(ping, err)
	default:
		fmt.Println("drop:", kind)
	}
	// Output:
	// PING 00000000-0000-0000-0000-000000000001 number=1 <nil>
}

// A message of another version has a type too.
func ExampleParseType_version() {
	pkt := []byte{0xDA, 0x72, 9, 10}
	kind, err := proto.ParseType(pkt)
	fmt.Println(kind, err == proto.ErrVersion)
	// Output:
	// RELAY true
}

// The payload aliases the datagram: copy it before the buffer is reused.
func ExampleParseRelay() {
	buffer := proto.Relay{
		From:    proto.AllocationID{15: 1},
		To:      proto.AllocationID{15: 2},
		Payload: []byte("hello"),
	}.Append(nil)

	m, err := proto.ParseRelay(buffer)
	if err != nil {
		fmt.Println("drop:", err)
		return
	}
	kept := string(m.Payload)
	clear(buffer)
	fmt.Printf("%q %q\n", kept, m.Payload)
	// Output:
	// "hello" "\x00\x00\x00\x00\x00"
}

// The client signs its BIND and the relay verifies it, each with one Signer per
// goroutine.
func ExampleSigner() {
	var key proto.Key // from the Allocations service
	var client, relay proto.Signer

	pkt := client.Append(nil, proto.Bind{Nonce: 1, ConnectionData: []byte("sealed")}, &key)
	bind, err := proto.ParseBind(pkt)
	fmt.Println(bind, err)
	fmt.Println(relay.Verify(pkt, &key))

	pkt[5]++ // another nonce
	fmt.Println(relay.Verify(pkt, &key))
	// Output:
	// BIND mode=0 nonce=1 data=6B <nil>
	// true
	// false
}

// A tool that shows traffic decodes messages of every type.
func ExampleDecode() {
	for _, pkt := range [][]byte{
		{0xDA, 0x72, 0, 1},
		proto.Error{ID: proto.AllocationID{15: 1}, Code: proto.ErrorMismatch}.Append(nil),
		{0xDA, 0x72, 0, 5},
	} {
		m, err := proto.Decode(pkt)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(m)
	}
	// Output:
	// BIND_RECEIVED
	// ERROR 00000000-0000-0000-0000-000000000001 3 (endpoint mismatch)
	// proto: message is of another or of an unknown type
}

// A key prints as "[redacted]" whatever the verb.
func ExampleKey() {
	key := proto.Key{1, 2, 3}
	fmt.Printf("%v %x %#v\n", key, key, key)
	// Output:
	// [redacted] [redacted] [redacted]
}
