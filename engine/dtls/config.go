package dtls

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/internal/base/unset"
)

const defaultMaxSessions = 65_536

// Config is the configuration of a [Records]. It must not be modified after New.
type Config struct {
	// Sessions is the file from which sessions of the previous process resume, and
	// in which sessions are stored for the next one. The caller closes it after
	// Run has returned and the last call of Seal and Open. Nil: sessions end with
	// the process.
	Sessions *SessionFile

	// MaxSessions is the largest number of sessions, of about 2 KB each. One more ends
	// one to which no allocation is bound, or is dropped at its last step if all are
	// bound. Zero means 65,536; at most 4,194,304.
	MaxSessions int
	// Idle is the time after which a session ends if no authentic record was
	// received. Zero means 60 s, the longest time that the relay waits for a
	// client; 100 ms to 24 h.
	Idle time.Duration

	// The rest is for tests. Zero means the default.

	// perIdentity is the largest number of sessions of one allocation: a roaming
	// client has two. One more ends the session that was silent for longest.
	perIdentity int
	// halfOpen is the largest number of unfinished handshakes, of up to 3 KB each.
	// One more, with a valid cookie, ends the oldest.
	halfOpen int
	// halfOpenPerPrefix is the largest number of unfinished handshakes of one
	// source prefix: an IPv4 address, or an IPv6 /56. One more, with a valid cookie,
	// ends the oldest of the prefix.
	halfOpenPerPrefix int
	// direct is the largest number of unfinished handshakes that were started
	// without a cookie, whose source may therefore be forged; of one prefix it is
	// half of halfOpenPerPrefix. Above it a ClientHello is answered with a cookie.
	// -1: none.
	direct int
	// handshakeTimeout ends a handshake that is not finished.
	handshakeTimeout time.Duration
	// fragmentCap is the largest size in bytes of a fragmented handshake message.
	// Only the ClientKeyExchange may be fragmented, and it has 18 to 38 bytes.
	fragmentCap int
	// quiet is the time for which a ClientHello from the source of an established
	// session is not answered, counted from the first one, while no record of the
	// session is received: see the package comment.
	quiet time.Duration
	// workers is the number of goroutines that handle handshakes; each source
	// prefix is assigned to one.
	workers int
	// queue is the number of datagrams, of 1.5 KB each, that may wait for one
	// worker, besides four times as many ClientHellos without a cookie.
	queue int
}

func (c Config) withDefaults() Config {
	c.MaxSessions = cmp.Or(c.MaxSessions, defaultMaxSessions)
	c.perIdentity = cmp.Or(c.perIdentity, 4)
	c.halfOpen = cmp.Or(c.halfOpen, 4096)
	c.halfOpenPerPrefix = cmp.Or(c.halfOpenPerPrefix, 64)
	c.fragmentCap = cmp.Or(c.fragmentCap, 256)
	c.workers = cmp.Or(c.workers, 2)
	c.queue = cmp.Or(c.queue, 512)
	c.direct = cmp.Or(c.direct, min(256, c.halfOpen/2))
	c.handshakeTimeout = cmp.Or(c.handshakeTimeout, 10*time.Second)
	c.Idle = cmp.Or(c.Idle, time.Minute)
	c.quiet = cmp.Or(c.quiet, 2500*time.Millisecond)
	return c
}

func (c *Config) validate() error {
	if c.Sessions != nil && unset.IsZero(c.Sessions) {
		return errors.New("dtls: Config.Sessions is a file that OpenSessionFile has not opened")
	}
	if c.MaxSessions < 1 || c.MaxSessions > 1<<22 {
		return fmt.Errorf("dtls: Config.MaxSessions is %d, want 1 to %d", c.MaxSessions, 1<<22)
	}
	if c.Idle < 100*time.Millisecond || c.Idle > 24*time.Hour {
		return fmt.Errorf("dtls: Config.Idle is %v, want 100ms to 24h", c.Idle)
	}
	return nil
}
