package client

import "github.com/ferryrelay/ferry/proto"

// Addr is the address of a player on the relay: its allocation id. It is
// comparable.
type Addr struct {
	ID proto.AllocationID
}

// Network returns "ferry".
func (Addr) Network() string { return "ferry" }

// String returns the id as the text of a UUID.
func (a Addr) String() string { return a.ID.String() }
