package sock

import (
	"errors"
	"fmt"
	"net/netip"
)

// Limits and defaults of this package.
const (
	// SlotSize is the room for one received datagram in bytes. It holds every
	// message of the wire protocol (at most 1,472 bytes) with some to spare; a
	// longer datagram is reported as truncated.
	SlotSize = 2048

	// DefaultBatch and MaxBatch bound the datagrams of one receive call.
	DefaultBatch = 64
	MaxBatch     = 256

	// MaxSendBatch bounds the entries of a SendBatch; Linux takes no more
	// than UIO_MAXIOV = 1,024 messages in a call.
	MaxSendBatch = 1024

	// MaxSockets bounds the sockets of one Group.
	MaxSockets = 256

	// DefaultBuffer is asked of the kernel for each socket buffer, in bytes.
	DefaultBuffer = 4 << 20

	// maxBuffer keeps the kernel's doubling of the size inside an int32.
	maxBuffer = 1 << 30
)

// Errors of [Listen].
var (
	ErrAddress = errors.New("sock: invalid listen address")
	ErrConfig  = errors.New("sock: invalid configuration")
)

// Config describes the sockets of a [Group].
type Config struct {
	// Addr is the address to listen on. Port 0 takes a free port. 0.0.0.0 and
	// [::] are wildcards; [::] hears IPv6 only, so that dual stack is two groups.
	Addr netip.AddrPort

	// Listener is copied into every endpoint.Endpoint the sockets report, so that a
	// process with several groups knows where to answer.
	Listener uint8

	// ReadBuffer and WriteBuffer are the kernel's buffers per socket in bytes.
	// 0 = DefaultBuffer; at most 1 GiB. Without CAP_NET_ADMIN the kernel grants
	// no more than net.core.rmem_max and wmem_max; see Capabilities.
	ReadBuffer, WriteBuffer int

	// Batch is the most datagrams one Recv returns. 0 = DefaultBatch, at most MaxBatch.
	Batch int

	// HoldProcessor lets a receiver keep its processor of Go's scheduler while
	// it waits for datagrams that keep coming. That saves a third and more of
	// the processor time at middling loads, see doc.go, but GOMAXPROCS must be
	// larger than the number of such receivers, or nothing else gets to run.
	// The portable build ignores it.
	HoldProcessor bool

	// Unmerged sends every datagram as a message of its own, even where the
	// kernel could take several at once; for measurements.
	DisableGSO bool
}

// Capabilities says what the kernel granted to a [Group].
type Capabilities struct {
	Path         string // "mmsg" (Linux) or "portable"
	ReusePort    bool   // the sockets share the port and the kernel spreads peers over them
	LocalAddress bool   // replies leave from the address the peer sent to (always so on a specific address)
	PathMTU      bool   // IP_PMTUDISC_OMIT is on: no path MTU learnt from outside is believed
	DropCounter  bool   // Stats.KernelDrops counts
	GSO          bool   // datagrams of a batch to one endpoint may leave as one message
	ReadBuffer   int    // granted, in bytes; 0 = unknown
	WriteBuffer  int    // granted, in bytes; 0 = unknown
}

func (cfg Config) withDefaults() (Config, error) {
	ip := cfg.Addr.Addr()
	if !ip.IsValid() {
		return cfg, ErrAddress
	}
	cfg.Addr = netip.AddrPortFrom(ip.Unmap(), cfg.Addr.Port())
	if cfg.ReadBuffer == 0 {
		cfg.ReadBuffer = DefaultBuffer
	}
	if cfg.WriteBuffer == 0 {
		cfg.WriteBuffer = DefaultBuffer
	}
	if cfg.Batch == 0 {
		cfg.Batch = DefaultBatch
	}
	switch {
	case cfg.ReadBuffer < 0 || cfg.ReadBuffer > maxBuffer:
		return cfg, fmt.Errorf("%w: ReadBuffer %d", ErrConfig, cfg.ReadBuffer)
	case cfg.WriteBuffer < 0 || cfg.WriteBuffer > maxBuffer:
		return cfg, fmt.Errorf("%w: WriteBuffer %d", ErrConfig, cfg.WriteBuffer)
	case cfg.Batch < 0 || cfg.Batch > MaxBatch:
		return cfg, fmt.Errorf("%w: Batch %d", ErrConfig, cfg.Batch)
	}
	return cfg, nil
}

func clampSendBatch(n int) int { return max(1, min(n, MaxSendBatch)) }
