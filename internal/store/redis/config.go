package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet"
)

// The defaults of a [Config], and its limits.
const (
	// DefaultTimeout keeps the promise of the API that it answers 503 within
	// 100 ms when the store is gone, with what is left for the rest of a call.
	DefaultTimeout = 70 * time.Millisecond
	// DefaultPoolSize is enough for tens of thousands of calls a second on one
	// network, and a thousand relays of that size still fit into the 10,000
	// clients that Redis takes, since an idle relay keeps one or two.
	DefaultPoolSize = 16
	// DefaultPrefix begins all keys.
	DefaultPrefix = "ferry:"
	// maxPrefix bounds the prefix: it is in memory once for each key.
	maxPrefix = 64
)

// How many calls in a row must fail until the breaker opens. In a cluster calls
// go to shards that fail apart, and one of three that is gone must not close
// the door to the others: 20 in a row happen by chance once in 10^9 calls.
const (
	failuresAlone   = 5
	failuresCluster = 20
)

// Config says where the store is and how long to wait for it.
type Config struct {
	// URL names the servers, see [ParseURL]. It may hold a password and is
	// never logged nor part of an error.
	URL string
	// Password is used where the URL has none, so that it can come from a file.
	Password string
	// TLS is used by rediss, rediss+sentinel and rediss+cluster; nil means the
	// system's roots. An empty ServerName is the name dialled.
	TLS *tls.Config
	// Prefix begins all keys, so that two fleets can share a server: up to 64
	// characters other than braces, spaces and control characters. Empty means
	// "ferry:".
	Prefix string
	// Timeout bounds each call, with waiting for a connection and making one. A
	// batch of Hold or Drop counts as one call. 0 means 70 ms.
	Timeout time.Duration
	// HoldFor is the time for which hosts and codes last without a refresh. 0 means
	// fleet.HoldFor; relays and API processes of a fleet must agree on it.
	HoldFor time.Duration
	// PoolSize bounds the connections to one server. 0 means 16.
	PoolSize int
	// Logger gets changes of the breaker. Nil: no log.
	Logger *slog.Logger
}

func (c Config) timeout() time.Duration {
	if c.Timeout == 0 {
		return DefaultTimeout
	}
	return c.Timeout
}

func (c Config) holdFor() time.Duration {
	if c.HoldFor == 0 {
		return fleet.HoldFor
	}
	return c.HoldFor
}

func (c Config) poolSize() int {
	if c.PoolSize == 0 {
		return DefaultPoolSize
	}
	return c.PoolSize
}

func (c Config) prefix() string {
	if c.Prefix == "" {
		return DefaultPrefix
	}
	return c.Prefix
}

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// validate returns the first thing that is wrong, with the field's name.
func (c Config) validate() error {
	switch {
	case c.URL == "":
		return errors.New("redisstore: URL is empty: name a server, for example redis://127.0.0.1:6379")
	case c.Timeout < 0:
		return fmt.Errorf("redisstore: Timeout %v is negative", c.Timeout)
	case c.HoldFor < 0 || c.HoldFor > 0 && c.HoldFor < time.Millisecond:
		return fmt.Errorf("redisstore: HoldFor %v is below a millisecond", c.HoldFor)
	case c.PoolSize < 0:
		return fmt.Errorf("redisstore: PoolSize %d is negative", c.PoolSize)
	case len(c.Prefix) > maxPrefix:
		return fmt.Errorf("redisstore: Prefix has %d bytes, at most %d are taken", len(c.Prefix), maxPrefix)
	case strings.ContainsFunc(c.Prefix, func(r rune) bool { return r <= ' ' || r == '{' || r == '}' || r > '~' }):
		return errors.New("redisstore: Prefix holds a brace, a space or another character than those of ASCII: braces would decide which shard of a cluster has a key")
	}
	return nil
}
