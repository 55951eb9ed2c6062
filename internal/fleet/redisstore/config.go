package redisstore

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

const (
	// defaultTimeout leaves enough time for the API to answer 503 within 100 ms when
	// the store is unavailable.
	defaultTimeout = 70 * time.Millisecond
	// defaultPoolSize is enough for tens of thousands of calls per second on one
	// network. A thousand relays of that size stay within the 10,000 clients of Redis,
	// since an idle relay keeps one or two connections.
	defaultPoolSize = 16
	defaultPrefix   = "ferry:"
)

// The consecutive failures that open the breaker. The shards of a cluster fail
// independently, and one of three must not block calls to the others: by chance 20
// consecutive calls go to that one once in 10^9 calls.
const (
	failuresAlone   = 5
	failuresCluster = 20
)

type Config struct {
	// URL names the servers, see [ParseURL]. It may hold a password and is
	// never logged nor part of an error.
	URL string
	// Password is used where the URL has none, so that it can come from a file.
	Password string
	// TLS is used by rediss, rediss+sentinel and rediss+cluster; nil means the
	// system's roots. An empty ServerName is the name dialled.
	TLS *tls.Config
	// Prefix begins all keys: characters other than braces, spaces and control characters,
	// so that tests can share a server. Empty means "ferry:".
	Prefix string
	// Region is the region whose state the store has, one of Symbols: the regions of the fleet by the
	// first symbol of their join codes. Empty: it has the state of all regions.
	Region  string
	Symbols map[string]string
	// Relay is set for the store of a relay, which reads what API processes have published of the regions.
	Relay bool
	// Timeout bounds each call, with waiting for a connection and making one. A
	// batch of Renew or Drop counts as one call. 0 means 70 ms.
	Timeout time.Duration
	// HostTTL is the time for which hosts and codes last without a refresh. 0 means
	// placement.HostTTL; relays and API processes of a fleet must agree on it.
	HostTTL time.Duration
	// Signer signs what this process writes and verifies what it reads. Required.
	Signer placement.Signer
	// PoolSize bounds the connections to one server. 0 means 16.
	PoolSize int
	// Logger gets changes of the breaker, and entries without a valid signature, at
	// most one a minute. Nil: no log.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.HostTTL = cmp.Or(c.HostTTL, placement.HostTTL)
	c.PoolSize = cmp.Or(c.PoolSize, defaultPoolSize)
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}
