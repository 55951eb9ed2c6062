package netcode

import "github.com/ferryrelay/ferry/internal/utp"

const WireVersion = wireVersion

type ProtocolVersion = version

func (d *Driver) Version() ProtocolVersion { return d.version }

func (d *Driver) Listening() bool { return d.listening() }

// Mask returns the acknowledgements as a mask of bits: bit i is the tick Newest-i.
func (a Acks) Mask() uint32 { return a.mask }

// MaxRPC returns the largest payload of an RPC that one packet carries, in bytes.
func (d *Driver) MaxRPC() int {
	n := d.rpcRoom() - utp.RPCLen
	if d.cfg.RelaxedVersion {
		n -= hashLen
	}
	return n
}

// Partial returns the length and the capacity of what is kept of a large RPC.
func (c Conn) Partial() (length, capacity int) {
	s := c.session()
	return len(s.rpcs.partial.buf), cap(s.rpcs.partial.buf)
}
