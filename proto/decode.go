package proto

// Message is any message of the protocol, as a value of one of the ten
// message types.
type Message interface {
	Append(dst []byte) []byte // appends the encoded message
	Len() int                 // size of the encoded message in bytes
	String() string           // one line for people, without secrets
}

// Decode reads a message of any type. It is for tools and tests: it allocates,
// and the serving path, which knows what it waits for, never calls it. The
// slices in the result alias pkt.
//
// Errors: those of the ParseX functions; ErrType for a type without a name.
// The message is nil then.
func Decode(pkt []byte) (Message, error) {
	t, err := ParseType(pkt)
	if err != nil {
		return nil, err
	}
	switch t {
	case TypeBind:
		return asMessage(ParseBind(pkt))
	case TypeBindReceived:
		return asMessage(ParseBindReceived(pkt))
	case TypePing:
		return asMessage(ParsePing(pkt))
	case TypeConnectRequest:
		return asMessage(ParseConnectRequest(pkt))
	case TypeAccepted:
		return asMessage(ParseAccepted(pkt))
	case TypeRejected:
		return asMessage(ParseRejected(pkt))
	case TypeDisconnect:
		return asMessage(ParseDisconnect(pkt))
	case TypeRelay:
		return asMessage(ParseRelay(pkt))
	case TypeClose:
		return asMessage(ParseClose(pkt))
	case TypeError:
		return asMessage(ParseError(pkt))
	}
	return nil, ErrType
}

// asMessage turns the result of a parser into that of Decode.
func asMessage[M Message](m M, err error) (Message, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}
