package websocket

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// MaxMessage is the largest message that a connection may send in bytes, the
// largest that the relay forwards (protocol.md 2.10).
const MaxMessage = proto.RelayOverhead + proto.MaxContent

// The defaults of a [Config].
const (
	DefaultMaxOutgoing   = 1386 // a native client's limit: 1,400 less 14
	DefaultQueueMessages = 256
	DefaultQueueBytes    = 128 << 10
	DefaultSendBuffer    = 128 << 10
	DefaultConns         = 4096
	DefaultAddressConns  = 64
	DefaultPingInterval  = 20 * time.Second
	DefaultPongTimeout   = 10 * time.Second
	DefaultWriteTimeout  = 5 * time.Second
	DefaultCloseTimeout  = 2 * time.Second
	DefaultBindTimeout   = 10 * time.Second
	DefaultIdleTimeout   = 2 * time.Minute
)

// Config says how a [Transport] behaves. The zero value of every field means
// its default. It is not modified after New.
type Config struct {
	// MaxOutgoing is the largest message that is sent in bytes; the engine drops
	// what is larger. Default 1,386, at least 36, at most 1,472. See the package
	// comment before raising it.
	MaxOutgoing int
	// QueueMessages and QueueBytes bound what may wait for one connection; a
	// message takes two bytes more than its size. Default 256 and 128 KiB.
	QueueMessages, QueueBytes int
	// SendBuffer is the size of the kernel's send buffer of one connection in
	// bytes, where the connection lets it be set: a *net.TCPConn, or one below
	// NetConn methods. It bounds what one connection carries to its size per
	// round trip. Default 128 KiB; negative: the kernel chooses.
	SendBuffer int

	// MaxConns is how many connections may be open. Default 4,096.
	MaxConns int
	// MaxConnsPerAddress is how many of them may come from one IPv4 address or
	// IPv6 /56. Default 64; negative: MaxConns.
	MaxConnsPerAddress int
	// TrustedProxies are the networks of reverse proxies whose X-Forwarded-For
	// is believed. Their own addresses have no limit per address. Nil: none.
	TrustedProxies []netip.Prefix
	// AllowOrigins are the web pages that may connect, as scheme://host, "null",
	// or "*" for all. A client that sends no Origin, as native ones, is always
	// let in. Nil: all.
	AllowOrigins []string

	// PingInterval is how often a connection that sent nothing since is pinged.
	// It is also how often idleness is looked at. Default 20 s.
	PingInterval time.Duration
	// PongTimeout cuts off a connection that leaves a ping unanswered for so
	// long. Default 10 s.
	PongTimeout time.Duration
	// WriteTimeout cuts off a connection that takes nothing for so long.
	// Default 5 s.
	WriteTimeout time.Duration
	// CloseTimeout is how long a connection that is closed with a status may
	// take to receive what is queued and to answer. Default 2 s.
	CloseTimeout time.Duration
	// BindTimeout closes a connection to which the relay has sent nothing but
	// ERROR for so long since it was opened. Default 10 s.
	BindTimeout time.Duration
	// IdleTimeout closes a connection to which the relay has sent nothing for so
	// long. It should be longer than any idle time-out of the engine. Default 2
	// minutes; negative: never.
	IdleTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.MaxOutgoing = or(c.MaxOutgoing, DefaultMaxOutgoing)
	c.QueueMessages = or(c.QueueMessages, DefaultQueueMessages)
	c.QueueBytes = or(c.QueueBytes, DefaultQueueBytes)
	c.SendBuffer = or(c.SendBuffer, DefaultSendBuffer)
	c.MaxConns = or(c.MaxConns, DefaultConns)
	c.MaxConnsPerAddress = or(c.MaxConnsPerAddress, DefaultAddressConns)
	if c.MaxConnsPerAddress < 0 {
		c.MaxConnsPerAddress = c.MaxConns
	}
	c.PingInterval = or(c.PingInterval, DefaultPingInterval)
	c.PongTimeout = or(c.PongTimeout, DefaultPongTimeout)
	c.WriteTimeout = or(c.WriteTimeout, DefaultWriteTimeout)
	c.CloseTimeout = or(c.CloseTimeout, DefaultCloseTimeout)
	c.BindTimeout = or(c.BindTimeout, DefaultBindTimeout)
	c.IdleTimeout = or(c.IdleTimeout, DefaultIdleTimeout)
	return c
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// minOutgoing is the largest reply of a relay: ACCEPTED. Without it no client
// gets anywhere.
const minOutgoing = proto.AcceptedLen

// validate returns the first problem of a config with defaults.
func (c *Config) validate() error {
	for _, f := range []struct {
		name            string
		value, min, max int
	}{
		{"MaxOutgoing", c.MaxOutgoing, minOutgoing, MaxMessage},
		{"QueueMessages", c.QueueMessages, 1, 1 << 16},
		{"QueueBytes", c.QueueBytes, MaxMessage + lengthSize, 1 << 26},
		{"SendBuffer", max(c.SendBuffer, 0), 0, 1 << 30},
		{"MaxConns", c.MaxConns, 1, 1 << 24},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("websocket: Config.%s is %d, want %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"PingInterval", c.PingInterval},
		{"PongTimeout", c.PongTimeout},
		{"WriteTimeout", c.WriteTimeout},
		{"CloseTimeout", c.CloseTimeout},
		{"BindTimeout", c.BindTimeout},
		{"IdleTimeout", max(c.IdleTimeout, 1)},
	} {
		if f.value <= 0 || f.value > 24*time.Hour {
			return fmt.Errorf("websocket: Config.%s is %v, want more than 0 and at most 24h", f.name, f.value)
		}
	}
	if i := slices.IndexFunc(c.AllowOrigins, func(o string) bool { return !validOrigin(o) }); i >= 0 {
		return fmt.Errorf("websocket: Config.AllowOrigins has %q, want scheme://host, null or *", c.AllowOrigins[i])
	}
	return nil
}

// anyOrigin is the entry of Config.AllowOrigins that stands for all.
const anyOrigin = "*"

// validOrigin reports whether a browser could write s into Origin.
func validOrigin(s string) bool {
	if s == anyOrigin || s == "null" {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && u.Host != "" && strings.EqualFold(s, u.Scheme+"://"+u.Host)
}

// allows reports whether a caller with that Origin may connect.
func (c *Config) allows(origin string) bool {
	return origin == "" || c.AllowOrigins == nil ||
		slices.ContainsFunc(c.AllowOrigins, func(o string) bool { return o == anyOrigin || strings.EqualFold(o, origin) })
}
