package proto

// The reference decoder: written to be read next to the diagrams in doc.go and
// from them alone. It shares the message types and the errors with the package
// and not one line of code: it consumes fields from the front, knows no sizes
// but those of single fields, and takes "something is missing" and "something
// is left over" as the two ways in which a size can be wrong.

// slowReader consumes a datagram field by field.
type slowReader struct {
	rest    []byte
	missing bool // a field reached beyond the end
}

// bytes takes the next n bytes.
func (r *slowReader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.missing = true
		r.rest = r.rest[:0]
		return make([]byte, n)
	}
	field := r.rest[:n]
	r.rest = r.rest[n:]
	return field
}

func (r *slowReader) u8() uint8 { return r.bytes(1)[0] }

// u16LittleEndian takes a number whose first byte counts ones.
func (r *slowReader) u16LittleEndian() uint16 {
	ones := uint16(r.u8())
	return ones + 256*uint16(r.u8())
}

// u16BigEndian takes a number whose second byte counts ones.
func (r *slowReader) u16BigEndian() uint16 {
	high := uint16(r.u8())
	return 256*high + uint16(r.u8())
}

func (r *slowReader) id() (id AllocationID) {
	copy(id[:], r.bytes(16))
	return id
}

// whole reports whether the fields read so far are exactly the datagram.
func (r *slowReader) whole() bool { return !r.missing && len(r.rest) == 0 }

// slowHeader reads the header, or says what is wrong with it. The type counts
// with ErrVersion too.
func slowHeader(pkt []byte) (Type, error) {
	r := slowReader{rest: pkt}
	first, second, version, kind := r.u8(), r.u8(), r.u8(), r.u8()
	if r.missing {
		return 0, ErrShort
	}
	if first != 0xDA || second != 0x72 {
		return 0, ErrSignature
	}
	if version != 0 {
		return Type(kind), ErrVersion
	}
	return Type(kind), nil
}

// slowDecode reads a message of any type.
func slowDecode(pkt []byte) (Message, error) {
	kind, err := slowHeader(pkt)
	if err != nil {
		return nil, err
	}
	return slowBody(pkt, kind)
}

// slowParse reads a message that has to be of type want.
func slowParse(pkt []byte, want Type) (Message, error) {
	kind, err := slowHeader(pkt)
	if err != nil {
		return nil, err
	}
	if kind != want {
		return nil, ErrType
	}
	return slowBody(pkt, kind)
}

// slowBody reads what follows the header in a message of type kind.
func slowBody(pkt []byte, kind Type) (Message, error) {
	r := slowReader{rest: pkt}
	r.bytes(4)
	m := slowFields(&r, kind)
	if m == nil {
		return nil, ErrType
	}
	if !r.whole() {
		return nil, ErrLength
	}
	if relay, ok := m.(Relay); ok && len(relay.Payload) > 1434 {
		return nil, ErrLength
	}
	return m, nil
}

// slowFields reads the fields of one type in the order of the diagrams. Go
// evaluates the calls in a composite literal from left to right, but the
// fields are read one statement at a time so that nobody has to know that.
func slowFields(r *slowReader, kind Type) Message {
	switch kind {
	case 0:
		return slowBind(r)
	case 1:
		return BindReceived{}
	case 2:
		id := r.id()
		number := r.u16LittleEndian()
		return Ping{ID: id, Number: number}
	case 3:
		id := r.id()
		n := r.u8()
		data := r.bytes(int(n))
		return ConnectRequest{ID: id, ConnectionData: data}
	case 6:
		from := r.id()
		to := r.id()
		return Accepted{From: from, To: to}
	case 8:
		from := r.id()
		to := r.id()
		return Rejected{From: from, To: to}
	case 9:
		from := r.id()
		to := r.id()
		return Disconnect{From: from, To: to}
	case 10:
		from := r.id()
		to := r.id()
		n := r.u16BigEndian()
		payload := r.bytes(int(n))
		return Relay{From: from, To: to, Payload: payload}
	case 11:
		return Close{ID: r.id()}
	case 12:
		id := r.id()
		code := r.u8()
		return Error{ID: id, Code: ErrorCode(code)}
	}
	return nil
}

func slowBind(r *slowReader) Bind {
	var m Bind
	m.AcceptMode = r.u8()
	m.Nonce = r.u16LittleEndian()
	n := r.u8()
	m.ConnectionData = r.bytes(int(n))
	copy(m.MAC[:], r.bytes(32))
	return m
}
