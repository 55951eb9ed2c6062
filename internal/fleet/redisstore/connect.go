package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// keepAlive detects connections whose other end has vanished.
const keepAlive = 15 * time.Second

// connIdleTimeout is the time after which an idle connection is closed: longer than a
// burst, and shorter than firewalls keep idle connections.
const connIdleTimeout = 2 * time.Minute

// slotRefreshInterval is the longest time for which the client trusts its map of a
// cluster's slots while calls are made. It detects failovers, which a dead master
// cannot report.
const slotRefreshInterval = 2 * time.Second

// connect returns a client for the servers at a. It opens no connection.
func connect(a Address, c Config) servers {
	o := redis.UniversalOptions{
		Addrs: a.Hosts, ClientName: "ferry",
		Username: a.Username, Password: a.Password, DB: a.DB,
		MasterName: a.Master, SentinelUsername: a.SentinelUsername, SentinelPassword: a.SentinelPassword,
		Dialer: dialer(a, c),
		// One retry, at once: a connection that the server has closed since it was
		// last used causes no error. A second one would be a retry storm.
		MaxRetries: 1, MinRetryBackoff: -1, MaxRetryBackoff: -1,
		DialTimeout: c.Timeout, DialerRetries: 1,
		ReadTimeout: c.Timeout, WriteTimeout: c.Timeout, PoolTimeout: c.Timeout,
		ContextTimeoutEnabled: true,
		PoolSize:              c.PoolSize, MaxActiveConns: c.PoolSize, PipelinePoolSize: -1,
		ConnMaxIdleTime: connIdleTimeout,
		// What the newer servers alone know makes older ones and proxies noisy.
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.Password == "" {
		o.Password = c.Password
	}
	switch a.Kind {
	case Sentinel:
		return libraryClient{redis.NewFailoverClient(o.Failover())}
	case Cluster:
		o.MaxRetries = -1 // Following a key that has moved is a retry of its own.
		cluster := o.Cluster()
		cluster.ClusterStateReloadInterval = slotRefreshInterval
		return libraryClient{redis.NewClusterClient(cluster)}
	}
	return libraryClient{redis.NewClient(o.Simple())}
}

// dialer returns the dial function. A failed dial returns a connection on which every
// operation fails with its error: the client itself limits dials after failed ones to
// one per second, which is later than the breaker needs.
func dialer(a Address, c Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: c.Timeout, KeepAlive: keepAlive}
	dial := plain.DialContext
	if a.TLS {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if c.TLS != nil {
			config = c.TLS.Clone()
		}
		dial = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return failedConn{err: err}, nil
		}
		return conn, nil
	}
}

type failedConn struct{ err error }

func (f failedConn) Read([]byte) (int, error)         { return 0, f.err }
func (f failedConn) Write([]byte) (int, error)        { return 0, f.err }
func (f failedConn) Close() error                     { return nil }
func (f failedConn) LocalAddr() net.Addr              { return noAddr{} }
func (f failedConn) RemoteAddr() net.Addr             { return noAddr{} }
func (f failedConn) SetDeadline(time.Time) error      { return nil }
func (f failedConn) SetReadDeadline(time.Time) error  { return nil }
func (f failedConn) SetWriteDeadline(time.Time) error { return nil }

type noAddr struct{}

func (noAddr) Network() string { return "none" }
func (noAddr) String() string  { return "none" }

// SetLogger sends the messages of the client library about connections and sentinels to
// l at debug level, instead of standard error. It applies to the whole process, so main
// calls it once.
func SetLogger(l *slog.Logger) { redis.SetLogger(libraryLog{l}) }

type libraryLog struct{ to *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	if l.to.Enabled(ctx, slog.LevelDebug) {
		l.to.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}
