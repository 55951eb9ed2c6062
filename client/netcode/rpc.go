package netcode

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
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

// Call is a kind of RPC with values of type T.
type Call[T any] struct {
	hash  uint64
	codec Codec[T]
}

// New returns the RPC with this value.
func (c Call[T]) New(v T) RPC { return RPC{hash: c.hash, Payload: c.codec.Append(nil, v)} }

// From returns the value of an RPC, and false if it is one of another kind.
func (c Call[T]) From(r RPC) (T, bool) {
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

// RPCOption says something about a kind of RPC.
type RPCOption uint8

// DuringApproval allows an RPC before its connection is connected, so that a
// client can tell who it is.
const DuringApproval RPCOption = 1

// maxRPCs leaves the indices above it to the RPCs of this package.
const maxRPCs = 65000

// RPCRegistry is the list of the RPCs that a game has. It may be shared by
// drivers; it has no lock. The zero value is empty.
type RPCRegistry struct {
	types []rpcType
}

type rpcType struct {
	name     string
	hash     uint64
	approval bool
	valid    func([]byte) bool
}

// RegisterRPC adds a kind of RPC. Both sides must do so under the same name;
// the order does not matter. The error wraps ErrRegistered.
func RegisterRPC[T any](r *RPCRegistry, name string, codec Codec[T], opts ...RPCOption) (Call[T], error) {
	t := rpcType{name: name, hash: hashOf(name), approval: slices.Contains(opts, DuringApproval)}
	if codec.Append == nil || codec.Parse == nil {
		return Call[T]{}, fmt.Errorf("%w: %q has no codec", ErrRegistered, name)
	}
	if len(r.types) == maxRPCs {
		return Call[T]{}, fmt.Errorf("%w: there are %d already", ErrRegistered, maxRPCs)
	}
	if slices.ContainsFunc(r.types, func(o rpcType) bool { return o.hash == t.hash }) {
		return Call[T]{}, fmt.Errorf("%w: there is another %q", ErrRegistered, name)
	}
	t.valid = func(b []byte) bool {
		_, rest, err := codec.Parse(b)
		return err == nil && len(rest) == 0
	}
	r.types = append(r.types, t)
	return Call[T]{hash: t.hash, codec: codec}, nil
}

func hashOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}

// rpcTable is a registry in the order of the indices.
type rpcTable []rpcType

func (r *RPCRegistry) table() rpcTable {
	t := slices.Clone(r.types)
	slices.SortFunc(t, func(a, b rpcType) int { return cmp.Compare(a.hash, b.hash) })
	return t
}

// find returns the index of an RPC, or false.
func (t rpcTable) find(hash uint64) (int, bool) {
	return slices.BinarySearchFunc(t, hash, func(r rpcType, h uint64) int { return cmp.Compare(r.hash, h) })
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
