package dtls

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/internal/base/unset"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// NoDirect is the value of [Config].Direct for no handshake without a cookie.
	NoDirect = -1

	// DefaultMaxMessage is the size in bytes of the largest message that any real client
	// accepts: UTP 1.5.0 up to 1,509 in a record, UTP 2.x up to its maxMessageSize.
	DefaultMaxMessage = proto.RelayOverhead + proto.MaxContent
	// SafeMessage is the size in bytes of the largest message that all real clients
	// accept: in a record it has 1,400, the default maxMessageSize of UTP 2.x.
	SafeMessage = 1363

	defaultMaxSessions = 65_536
)

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
	// PerIdentity is the largest number of sessions of one allocation: a roaming
	// client has two. One more ends the session that was silent for longest. Zero
	// means 4; at most 64.
	PerIdentity int
	// HalfOpen is the largest number of unfinished handshakes, of up to 3 KB each.
	// One more, with a valid cookie, ends the oldest. Zero means 4096; at most
	// 1,048,576.
	HalfOpen int
	// HalfOpenPerPrefix is the largest number of unfinished handshakes of one
	// source prefix: an IPv4 address, or an IPv6 /56. One more, with a valid cookie,
	// ends the oldest of the prefix. Zero means 64; at most 65,536.
	HalfOpenPerPrefix int
	// Direct is the largest number of unfinished handshakes that were started
	// without a cookie, whose source may therefore be forged; of one prefix it is
	// half of HalfOpenPerPrefix. Above it a ClientHello is answered with a cookie.
	// Zero means 256, [NoDirect] none; at most half of HalfOpen.
	Direct int
	// MaxMessage is the size in bytes of the largest message that is sent to a
	// session; larger ones are dropped. Zero means DefaultMaxMessage; 36 to 1,472.
	MaxMessage int
	// HandshakeTimeout ends a handshake that is not finished. Zero means 10 s;
	// 100 ms to 10 min.
	HandshakeTimeout time.Duration
	// FragmentCap is the largest size in bytes of a fragmented handshake message.
	// Only the ClientKeyExchange may be fragmented, and it has 18 to 38 bytes.
	// Zero means 256; at most 1024.
	FragmentCap int
	// Idle is the time after which a session ends if no authentic record was
	// received. Zero means 60 s, the longest time that the relay waits for a
	// client; 100 ms to 24 h.
	Idle time.Duration
	// Quiet is the time for which a ClientHello from the source of an established
	// session is not answered, counted from the first one, while no record of the
	// session is received: see the package comment. Zero means 2.5 s; at most 1 min.
	Quiet time.Duration
	// Workers is the number of goroutines that handle handshakes; each source
	// prefix is assigned to one. Zero means 2; at most 64.
	Workers int
	// Queue is the number of datagrams, of 1.5 KB each, that may wait for one
	// worker, besides four times as many ClientHellos without a cookie. Zero means
	// 512; at most 65,536.
	Queue int
}

func (c Config) withDefaults() Config {
	c.MaxSessions = cmp.Or(c.MaxSessions, defaultMaxSessions)
	c.PerIdentity = cmp.Or(c.PerIdentity, 4)
	c.HalfOpen = cmp.Or(c.HalfOpen, 4096)
	c.HalfOpenPerPrefix = cmp.Or(c.HalfOpenPerPrefix, 64)
	c.FragmentCap = cmp.Or(c.FragmentCap, 256)
	c.MaxMessage = cmp.Or(c.MaxMessage, DefaultMaxMessage)
	c.Workers = cmp.Or(c.Workers, 2)
	c.Queue = cmp.Or(c.Queue, 512)
	c.Direct = cmp.Or(c.Direct, min(256, c.HalfOpen/2))
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 10*time.Second)
	c.Idle = cmp.Or(c.Idle, time.Minute)
	c.Quiet = cmp.Or(c.Quiet, 2500*time.Millisecond)
	return c
}

func (c *Config) validate() error {
	if c.Sessions != nil && unset.IsZero(c.Sessions) {
		return errors.New("dtls: Config.Sessions is a file that OpenSessionFile has not opened")
	}
	for _, f := range []struct {
		name            string
		value, min, max int
	}{
		{"MaxSessions", c.MaxSessions, 1, 1 << 22},
		{"PerIdentity", c.PerIdentity, 1, 64},
		{"HalfOpen", c.HalfOpen, 2, 1 << 20},
		{"HalfOpenPerPrefix", c.HalfOpenPerPrefix, 2, 1 << 16},
		{"Direct", c.Direct, NoDirect, c.HalfOpen / 2},
		{"FragmentCap", c.FragmentCap, 1, 1024},
		{"MaxMessage", c.MaxMessage, proto.Accepted{}.Len(), proto.RelayOverhead + proto.MaxContent},
		{"Workers", c.Workers, 1, 64},
		{"Queue", c.Queue, 1, 1 << 16},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("dtls: Config.%s is %d, want %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	for _, f := range []struct {
		name            string
		value, min, max time.Duration
	}{
		{"HandshakeTimeout", c.HandshakeTimeout, 100 * time.Millisecond, 10 * time.Minute},
		{"Idle", c.Idle, 100 * time.Millisecond, 24 * time.Hour},
		{"Quiet", c.Quiet, time.Millisecond, time.Minute},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("dtls: Config.%s is %v, want %v to %v", f.name, f.value, f.min, f.max)
		}
	}
	return nil
}
