package netcode

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/internal/utp"
)

// Codec writes and reads the values of an RPC.
type Codec[T any] struct {
	// Append appends the encoded value to dst.
	Append func(dst []byte, v T) []byte
	// Parse reads a value and returns what follows it. An error, or anything
	// that follows, ends the connection with ReasonInvalidRPC. It must take
	// whatever a peer sends, twice, and not keep b.
	Parse func(b []byte) (v T, rest []byte, err error)
}

// Raw returns the codec of RPCs that are bytes. A value that was received is
// valid until the next Update.
func Raw() Codec[[]byte] {
	return Codec[[]byte]{
		Append: func(dst, v []byte) []byte { return append(dst, v...) },
		Parse:  func(b []byte) (v, rest []byte, err error) { return b, nil, nil },
	}
}

// RPC is one call, as it is sent or as it was received.
type RPC struct {
	hash    uint64
	Payload []byte // of a received one, valid until the next Update
}

// RPCType is a registered type of RPC whose values have Go type T. It is immutable
// and safe for concurrent use if its codec is.
type RPCType[T any] struct {
	hash  uint64
	codec Codec[T]
}

func (c RPCType[T]) New(v T) RPC { return RPC{hash: c.hash, Payload: c.codec.Append(nil, v)} }

func (c RPCType[T]) From(r RPC) (T, bool) {
	var zero T
	if r.hash != c.hash || c.codec.Parse == nil {
		return zero, false
	}
	v, rest, err := c.codec.Parse(r.Payload)
	if err != nil || len(rest) > 0 {
		return zero, false
	}
	return v, true
}

// maxRPCs leaves the indices above it to the RPCs of this package.
const maxRPCs = 65000

// RPCRegistry is the RPCs of a game. Drivers may share it; it has no lock.
type RPCRegistry struct {
	types []rpcType
}

type rpcType struct {
	name     string
	hash     uint64
	approval bool
	valid    func([]byte) bool
}

// RegisterRPC adds a type of RPC. Both sides must do so under the same name. The error
// of a name or a codec that cannot be used wraps ErrConfig.
func RegisterRPC[T any](r *RPCRegistry, name string, codec Codec[T]) (RPCType[T], error) {
	return register(r, name, codec, false)
}

// RegisterApprovalRPC is RegisterRPC for a type that is allowed before its connection is
// connected as well, so that a client can identify itself.
func RegisterApprovalRPC[T any](r *RPCRegistry, name string, codec Codec[T]) (RPCType[T], error) {
	return register(r, name, codec, true)
}

func register[T any](r *RPCRegistry, name string, codec Codec[T], approval bool) (RPCType[T], error) {
	t := rpcType{name: name, hash: hashOf(name), approval: approval}
	if codec.Append == nil || codec.Parse == nil {
		return RPCType[T]{}, fmt.Errorf("%w: RPC %q has no codec", ErrConfig, name)
	}
	if len(r.types) == maxRPCs {
		return RPCType[T]{}, fmt.Errorf("%w: there are %d RPCs already", ErrConfig, maxRPCs)
	}
	if slices.ContainsFunc(r.types, func(o rpcType) bool { return o.hash == t.hash }) {
		return RPCType[T]{}, fmt.Errorf("%w: there is another RPC %q", ErrConfig, name)
	}
	t.valid = func(b []byte) bool {
		_, rest, err := codec.Parse(b)
		return err == nil && len(rest) == 0
	}
	r.types = append(r.types, t)
	return RPCType[T]{hash: t.hash, codec: codec}, nil
}

func hashOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}

type rpcTable []rpcType

func (r *RPCRegistry) table() rpcTable {
	t := slices.Clone(r.types)
	slices.SortFunc(t, func(a, b rpcType) int { return cmp.Compare(a.hash, b.hash) })
	return t
}

func (t rpcTable) find(hash uint64) (int, bool) {
	return slices.BinarySearchFunc(t, hash, func(r rpcType, h uint64) int { return cmp.Compare(r.hash, h) })
}

func (t rpcTable) lookup(index uint16, payload []byte) (r *rpcType, rest []byte, known bool) {
	i, known := int(index), int(index) < len(t)
	if index == indexNamed && len(payload) >= hashLen {
		i, known = t.find(binary.LittleEndian.Uint64(payload))
		payload = payload[hashLen:]
	}
	if !known {
		return nil, nil, false
	}
	return &t[i], payload, true
}

// fingerprint is the same for the same RPCs with the same options.
func (t rpcTable) fingerprint() uint64 {
	h := fnv.New64a()
	var b [9]byte
	for _, r := range t {
		binary.LittleEndian.PutUint64(b[:], r.hash)
		b[8] = 0
		if r.approval {
			b[8] = 1
		}
		_, _ = h.Write(b[:])
	}
	return h.Sum64()
}

type rpcQueue struct {
	buf  []byte
	head int
}

func (q *rpcQueue) reset() { q.buf, q.head = q.buf[:0], 0 }

func (q *rpcQueue) len() int { return len(q.buf) - q.head }

func (q *rpcQueue) add(index uint16, head, rest []byte) {
	q.buf = utp.RPC{Index: index, Bits: uint16(8 * (len(head) + len(rest))), Payload: head}.Append(q.buf)
	q.buf = append(q.buf, rest...)
}

func (q *rpcQueue) next(room int) []byte {
	rest := q.buf[q.head:]
	if len(rest) <= room {
		return rest
	}
	n := 0
	for n < len(rest) {
		size := utp.RPCLen + (int(binary.LittleEndian.Uint16(rest[n+2:]))+7)/8
		if n > 0 && n+size > room {
			break
		}
		n += size
	}
	return rest[:n]
}

func (q *rpcQueue) drop(n int) {
	q.head += n
	if q.head == len(q.buf) {
		q.reset()
	} else if q.head > len(q.buf)/2 {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
}

// Indices of RPCs that no registry has. All bodies are little-endian.
const (
	indexNamed       = 0xFFFF // a game's RPC by its hash, u64 before the payload
	indexVersion     = 0xFFFE // version
	indexGetApproved = 0xFFFD // no body: the server asks the client to be approved
	indexApproved    = 0xFFFC // i32 NetworkID, u32 reserved, u32 handshake and approval timeout in ms
	indexClose       = 0xFFFB // u8 reason, up to maxCloseText bytes of text
	indexFirstPart   = 0xFFFA // of a large RPC, see partHeaderLen
	indexPart        = 0xFFF9

	firstSystem = indexPart
	approvedLen = 12
	hashLen     = 8
)

func appendApproved(dst []byte, id NetworkID, limit time.Duration) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(id))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	return binary.LittleEndian.AppendUint32(dst, uint32(min(limit.Milliseconds(), 1<<32-1)))
}

func parseApproved(b []byte) (NetworkID, bool) {
	if len(b) != approvedLen {
		return 0, false
	}
	id := NetworkID(binary.LittleEndian.Uint32(b))
	return id, id > 0
}

func appendClose(dst []byte, r Reason, text string) []byte {
	return append(append(dst, byte(r)), cut(text)...)
}

func parseClose(b []byte) (r Reason, text string, ok bool) {
	if len(b) == 0 || len(b) > 1+maxCloseText {
		return 0, "", false
	}
	return Reason(b[0]), strings.ToValidUTF8(string(b[1:]), "?"), true
}

const maxCloseText = 127

// cut shortens a text to maxCloseText bytes of whole characters.
func cut(text string) string {
	if len(text) <= maxCloseText {
		return text
	}
	end := maxCloseText
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
