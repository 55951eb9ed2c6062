package utp

import (
	"crypto/rand"
	"fmt"
	"io"
	"time"

	"github.com/ferryrelay/ferry/internal/utpwire"
)

// Config says what an endpoint does. Durations count in whole milliseconds.
type Config struct {
	// Pipelines have the ids 1, 2, 3 and so on. At most 255; none is fine.
	Pipelines []Pipeline
	// Window is how many packets of a reliable pipeline may be unacknowledged,
	// 1 to 64. 0 means 32. Both ends must agree on it: up to 32 and above have
	// headers of different sizes.
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
	// sent again, 64 ms to 10 s. 0 means 200 ms. Where round trips are longer,
	// packets are sent again for nothing.
	MaxResendTime time.Duration

	// MaxConnections bounds all connections, of both directions. 0 means 1024,
	// the limit is 65536. A client above it is refused by a disconnect.
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
	// allocation. 0 means 32, enough for a school behind one address. A request above it
	// gets no answer, so that the client repeats it.
	MaxHalfOpenPerSource int

	// SendQueue bounds the datagrams that wait for Next, 16 to 65536. 0 means
	// 4096.
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

	// halfOpenMS is how long an accepted client may send nothing. One that lives sends
	// within half a second; the rest is for lost packets.
	halfOpenMS = 10_000
	// maxRefusals bounds the answers per second to clients that get no connection, whose
	// addresses may be forged.
	maxRefusals = 100
	// receiveQueue bounds the events that wait for NextEvent. Data and requests above it are
	// dropped as if lost.
	receiveQueue = 4096

	minResendMS   = 64
	startResendMS = 50
	maxResend     = 10 * time.Second
)

// withDefaults returns the configuration with every zero replaced.
func (c Config) withDefaults() Config {
	c.Window = orDefault(c.Window, 32)
	c.FragmentCapacity = orDefault(c.FragmentCapacity, 4096)
	c.MaxMessageSize = orDefault(c.MaxMessageSize, 1400)
	c.ConnectTimeout = orDefault(c.ConnectTimeout, time.Second)
	c.ConnectAttempts = orDefault(c.ConnectAttempts, 60)
	c.HeartbeatTimeout = orDefault(c.HeartbeatTimeout, 500*time.Millisecond)
	c.DisconnectTimeout = orDefault(c.DisconnectTimeout, 30*time.Second)
	c.MaxResendTime = orDefault(c.MaxResendTime, 200*time.Millisecond)
	c.MaxConnections = orDefault(c.MaxConnections, 1024)
	c.MaxHalfOpen = orDefault(c.MaxHalfOpen, 256)
	c.MaxHalfOpenPerSource = orDefault(c.MaxHalfOpenPerSource, 32)
	c.SendQueue = orDefault(c.SendQueue, 4096)
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	return c
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// room is how many bytes of a datagram are ours.
func (c Config) room() int { return c.MaxMessageSize - c.Overhead }

// check takes a configuration that has its defaults.
func (c Config) check() error {
	for _, n := range []struct {
		name              string
		value, low, limit int
	}{
		{"Pipelines", len(c.Pipelines), 0, maxPipelines},
		{"Window", c.Window, 1, maxWindow},
		{"FragmentCapacity", c.FragmentCapacity, 1, MaxFragmentCapacity},
		{"MaxMessageSize", c.MaxMessageSize, minRoom, utpwire.MaxDatagram},
		{"Overhead", c.Overhead, 0, c.MaxMessageSize - minRoom},
		{"ConnectAttempts", c.ConnectAttempts, 1, 1 << 20},
		{"MaxConnections", c.MaxConnections, 1, 65536},
		{"MaxHalfOpen", c.MaxHalfOpen, 1, 65536},
		{"MaxHalfOpenPerSource", c.MaxHalfOpenPerSource, 1, 65536},
		{"SendQueue", c.SendQueue, minQueue, maxQueue},
	} {
		if n.value < n.low || n.value > n.limit {
			return fmt.Errorf("%w: %s is %d, not within %d and %d", ErrConfig, n.name, n.value, n.low, n.limit)
		}
	}
	return c.checkTimes()
}

func (c Config) checkTimes() error {
	for _, d := range []struct {
		name       string
		value      time.Duration
		low, limit time.Duration
		never      bool
	}{
		{"ConnectTimeout", c.ConnectTimeout, time.Millisecond, maxDuration, false},
		{"HeartbeatTimeout", c.HeartbeatTimeout, time.Millisecond, maxDuration, true},
		{"DisconnectTimeout", c.DisconnectTimeout, time.Millisecond, maxDuration, true},
		{"MaxResendTime", c.MaxResendTime, minResendMS * time.Millisecond, maxResend, false},
	} {
		if (d.value < d.low || d.value > d.limit) && !(d.never && d.value == NoTimeout) {
			return fmt.Errorf("%w: %s is %v, not within %v and %v", ErrConfig, d.name, d.value, d.low, d.limit)
		}
	}
	return nil
}
