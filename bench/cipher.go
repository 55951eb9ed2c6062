package bench

// Cipher encrypts the way between an endpoint and the relay, datagram by
// datagram, as DTLS does. One goroutine uses it at a time.
type Cipher interface {
	// Seal appends to dst what is sent for msg, which has Overhead bytes more.
	Seal(dst, msg []byte) []byte
	// Open returns the message in a datagram, within whose memory it lies, and
	// nil if there is none.
	Open(pkt []byte) []byte
	Overhead() int
}

// decrypt returns what a datagram to an endpoint says, nil if nothing.
func (r *Rig) decrypt(ep int32, pkt []byte) []byte {
	if ep < 0 || r.Endpoints[ep].Cipher == nil {
		return pkt
	}
	return r.Endpoints[ep].Cipher.Open(pkt)
}

// encrypt returns what an endpoint sends for a message.
func (r *Rig) encrypt(ep int, msg []byte) []byte {
	if c := r.Endpoints[ep].Cipher; c != nil {
		return c.Seal(nil, msg)
	}
	return msg
}

// overhead is by how much a datagram of an endpoint is longer than its message.
func (r *Rig) overhead(ep int) int {
	if c := r.Endpoints[ep].Cipher; c != nil {
		return c.Overhead()
	}
	return 0
}

// seal puts the record with a datagram of a flow into the same memory.
func (g *generator) seal(f *flow, room, pkt []byte) []byte {
	g.plain = append(g.plain[:0], pkt...)
	return f.cipher.Seal(room[:0], g.plain)
}
