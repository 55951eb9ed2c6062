package utp

// Message is any packet of the connection layer.
type Message interface {
	// Append appends the encoded packet to dst.
	Append(dst []byte) []byte
	// String describes the packet in one line.
	String() string
}

// Decode reads a packet of any kind. It is for tests and tools: an endpoint
// does not use it. The error is that of the kind's own parser.
func Decode(pkt []byte) (Message, error) {
	kind, _, err := ParseKind(pkt)
	if err != nil {
		return nil, err
	}
	switch kind {
	case KindRequest:
		return message(ParseRequest(pkt))
	case KindAccept:
		return message(ParseAccept(pkt))
	case KindData:
		return message(ParseData(pkt))
	case KindDisconnect:
		return message(ParseDisconnect(pkt))
	case KindHeartbeat:
		return message(ParseHeartbeat(pkt))
	case KindMTUCheck:
		return message(ParseMTUCheck(pkt))
	}
	return message(ParseMTUAck(pkt))
}

func message[M Message](m M, err error) (Message, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}
