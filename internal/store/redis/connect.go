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

// keepAlive finds connections whose other end is gone without a word.
const keepAlive = 15 * time.Second

// idleFor is how long a connection stays that nobody uses. A burst is over by
// then, and firewalls that forget connections wait longer.
const idleFor = 2 * time.Minute

// shardsEvery is the longest time for which it is believed who has which slots
// of a cluster, while calls are made. Nobody else tells of a failover: a master
// that is gone sends nobody to its successor.
const shardsEvery = 2 * time.Second

// connect returns a client for the servers at a. It opens no connection.
func connect(a Address, c Config) redis.UniversalClient {
	o := redis.UniversalOptions{
		Addrs: a.Hosts, ClientName: "ferry",
		Username: a.Username, Password: a.Password, DB: a.DB,
		MasterName: a.Master, SentinelUsername: a.SentinelUsername, SentinelPassword: a.SentinelPassword,
		Dialer: dialer(a, c),
		// One retry, at once: a connection that the server has closed since it was
		// last used costs nobody an answer. A second one would be a retry storm.
		MaxRetries: 1, MinRetryBackoff: -1, MaxRetryBackoff: -1,
		DialTimeout: c.timeout(), DialerRetries: 1,
		ReadTimeout: c.timeout(), WriteTimeout: c.timeout(), PoolTimeout: c.timeout(),
		ContextTimeoutEnabled: true,
		PoolSize:              c.poolSize(), MaxActiveConns: c.poolSize(), PipelinePoolSize: -1,
		ConnMaxIdleTime: idleFor,
		// What the newer servers alone know makes older ones and proxies noisy.
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if o.Password == "" {
		o.Password = c.Password
	}
	switch a.Kind {
	case Sentinel:
		return redis.NewFailoverClient(o.Failover())
	case Cluster:
		o.MaxRetries = -1 // Following a key that has moved is a retry of its own.
		cluster := o.Cluster()
		cluster.ClusterStateReloadInterval = shardsEvery
		return redis.NewClusterClient(cluster)
	}
	return redis.NewClient(o.Simple())
}

// dialer returns how connections are made. A dial that fails gives a connection
// on which everything fails with that error: the client counts failed dials by
// itself, and once they are as many as the pool has places, it would try but
// once a second, which is later than the breaker wants to know.
func dialer(a Address, c Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: c.timeout(), KeepAlive: keepAlive}
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
			return failed{err: err}, nil
		}
		return conn, nil
	}
}

// failed is a connection that could not be made.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error)         { return 0, f.err }
func (f failed) Write([]byte) (int, error)        { return 0, f.err }
func (f failed) Close() error                     { return nil }
func (f failed) LocalAddr() net.Addr              { return nowhere{} }
func (f failed) RemoteAddr() net.Addr             { return nowhere{} }
func (f failed) SetDeadline(time.Time) error      { return nil }
func (f failed) SetReadDeadline(time.Time) error  { return nil }
func (f failed) SetWriteDeadline(time.Time) error { return nil }

// nowhere is the address of a failed connection.
type nowhere struct{}

func (nowhere) Network() string { return "none" }
func (nowhere) String() string  { return "none" }

// SetLogger has the client library write what it says about connections and
// sentinels to l, at the level of debugging, and not to the standard error
// output. It holds for the whole process, so main calls it, once.
func SetLogger(l *slog.Logger) { redis.SetLogger(libraryLog{l}) }

type libraryLog struct{ to *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	if l.to.Enabled(ctx, slog.LevelDebug) {
		l.to.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}
