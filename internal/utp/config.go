package utp

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"time"
)

// Config says what an endpoint does. The clock of an endpoint counts in whole milliseconds.
type Config struct {
	// Pipelines have the ids 1, 2, 3 and so on. At most 255; none is fine.
	Pipelines []Pipeline
	// Window is how many packets of a reliable pipeline may be unacknowledged,
	// 1 to 64. 0 means 32. Both ends must have at most 32, or both more.
	Window int
	// FragmentCapacity is the largest message in bytes on a pipeline with
	// fragmentation, up to 1 MiB. 0 means 4096. A message may also not need
	// more packets than Window on a reliable pipeline, or than half of SendQueue.
	FragmentCapacity int
	// MaxMessageSize is the largest datagram in bytes on the socket, Overhead
	// included, up to 1472. 0 means 1400.
	MaxMessageSize int
	// Overhead is how many bytes of each datagram the link takes for itself: 38
	// on a relay, 0 on UDP. It must leave 128 bytes of MaxMessageSize.
	Overhead int

	// ConnectTimeout is the time between requests. 0 means 1 s.
	ConnectTimeout time.Duration
	// ConnectAttempts is how many requests are sent before the attempt ends
	// with ReasonMaxConnectionAttempts. 0 means 60.
	ConnectAttempts int
	// HeartbeatTimeout is how long nothing may be sent before a heartbeat is. 0
	// means 500 ms, NoTimeout means no heartbeats.
	HeartbeatTimeout time.Duration
	// DisconnectTimeout is how long nothing may be received before the connection
	// ends with ReasonTimeout. 0 means 30 s, NoTimeout means no limit.
	DisconnectTimeout time.Duration
	// MaxResendTime bounds the time after which an unacknowledged packet is
	// sent again, 64 ms to 10 s. 0 means 200 ms.
	MaxResendTime time.Duration

	// MaxConnections bounds all connections, of both directions. 0 means 1024,
	// the limit is 65536.
	MaxConnections int
	// ValidateAddresses makes a server answer a request with a cookie and keep nothing
	// until the client returns it, and makes a client return it. Both sides must set it:
	// Unity's packages cannot.
	ValidateAddresses bool
	// MaxHalfOpen bounds the connections of clients that are not admitted yet, see
	// Endpoint.Admit. 0 means 256. A further request takes the place of the oldest one
	// that is unvalidated; with ValidateAddresses it is refused by a disconnect.
	MaxHalfOpen int
	// MaxHalfOpenPerSource is the same for one IPv4 address, one IPv6 /64 or one
	// allocation. 0 means 32. A request above it gets no answer.
	MaxHalfOpenPerSource int

	// SendQueue bounds the datagrams that wait for Next, 16 to 65536. 0: 4096.
	SendQueue int

	// Rand gives the tokens. Nil means crypto/rand.
	Rand io.Reader
}

// NoTimeout disables a timeout, in the fields of Config that name it.
const NoTimeout time.Duration = -1

const (
	narrowWindow        = 32 // packets whose acknowledgements fit into 4 bytes
	maxWindow           = 64 // larger ones exist since UTP 2.6, and are not recommended
	maxPipelines        = 255
	MaxFragmentCapacity = 1 << 20
	// minRoom holds every header and some payload, and bounds how many
	// fragments a message can have: 2^20/100 is below 2^14.
	minRoom     = 128
	maxQueue    = 65536
	minQueue    = 16
	maxDuration = time.Hour // far from where sums of milliseconds could overflow
	// packetsPerSend is a data packet and the accept that may go ahead of it.
	packetsPerSend = 2

	// halfOpenLife is how long an accepted client may send nothing. One that lives sends
	// within half a second; the rest is for lost packets.
	halfOpenLife = 10 * time.Second
	// receiveQueue bounds the events that wait for NextEvent. Data and requests above it are
	// dropped as if lost.
	receiveQueue = 4096

	minResend   = 64 * time.Millisecond
	startResend = 50 * time.Millisecond
	maxResend   = 10 * time.Second
)

func (c Config) withDefaults() Config {
	c.Window = cmp.Or(c.Window, 32)
	c.FragmentCapacity = cmp.Or(c.FragmentCapacity, 4096)
	c.MaxMessageSize = cmp.Or(c.MaxMessageSize, 1400)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, time.Second)
	c.ConnectAttempts = cmp.Or(c.ConnectAttempts, 60)
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, 500*time.Millisecond)
	c.DisconnectTimeout = cmp.Or(c.DisconnectTimeout, 30*time.Second)
	c.MaxResendTime = cmp.Or(c.MaxResendTime, 200*time.Millisecond)
	c.MaxConnections = cmp.Or(c.MaxConnections, 1024)
	c.MaxHalfOpen = cmp.Or(c.MaxHalfOpen, 256)
	c.MaxHalfOpenPerSource = cmp.Or(c.MaxHalfOpenPerSource, 32)
	c.SendQueue = cmp.Or(c.SendQueue, 4096)
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	return c
}

func (c Config) room() int { return c.MaxMessageSize - c.Overhead }

func (c Config) check() error {
	return cmp.Or(
		within("Pipelines", len(c.Pipelines), 0, maxPipelines),
		within("Window", c.Window, 1, maxWindow),
		within("FragmentCapacity", c.FragmentCapacity, 1, MaxFragmentCapacity),
		within("MaxMessageSize", c.MaxMessageSize, minRoom, maxDatagram),
		within("Overhead", c.Overhead, 0, c.MaxMessageSize-minRoom),
		within("ConnectAttempts", c.ConnectAttempts, 1, 1<<20),
		within("MaxConnections", c.MaxConnections, 1, 65536),
		within("MaxHalfOpen", c.MaxHalfOpen, 1, 65536),
		within("MaxHalfOpenPerSource", c.MaxHalfOpenPerSource, 1, 65536),
		within("SendQueue", c.SendQueue, minQueue, maxQueue),
		within("ConnectTimeout", c.ConnectTimeout, time.Millisecond, maxDuration),
		within("HeartbeatTimeout", c.HeartbeatTimeout, time.Millisecond, maxDuration, NoTimeout),
		within("DisconnectTimeout", c.DisconnectTimeout, time.Millisecond, maxDuration, NoTimeout),
		within("MaxResendTime", c.MaxResendTime, minResend, maxResend),
	)
}

func within[T int | time.Duration](name string, v, low, high T, others ...T) error {
	if v >= low && v <= high || slices.Contains(others, v) {
		return nil
	}
	return fmt.Errorf("%w: %s is %v, not within %v and %v", ErrConfig, name, v, low, high)
}
