package dtls

import (
	"errors"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/internal/statefile"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// DefaultMaxMessage is the largest message in bytes that real clients are known
	// to take: in a record it has 1,437, and they discard datagrams above that.
	DefaultMaxMessage = 1400
	// SafeMessage is the largest message in bytes that real clients send by default,
	// so all take it: in a record it has 1,400.
	SafeMessage = 1363
)

// Config says how a [Records] works. Only PSK is required.
type Config struct {
	// PSK returns the key of an allocation, and false for one that this relay
	// does not know. Handshake goroutines call it, several at once.
	PSK func(id proto.AllocationID) (key proto.Key, ok bool)

	// Sessions is the file of which sessions go on after a restart, and into which
	// they go for the next one. The caller opens it, and closes it when Run has
	// returned and no message is sealed any more. Nil: sessions end with the process.
	Sessions *statefile.Sessions

	// MaxSessions is how many sessions may live at once, about 2 KB each. A
	// handshake beyond it is dropped at its last step. Zero means 65,536; at
	// most 4,194,304.
	MaxSessions int
	// PerIdentity is how many sessions one allocation may have at once: a
	// client that roams has two. One more ends the one that was silent for
	// longest. Zero means 4; at most 64.
	PerIdentity int
	// HalfOpen is how many handshakes may be under way at once, up to 3 KB each.
	// One more, with a good cookie, ends the oldest. Zero means 4096; at most 1,048,576.
	HalfOpen int
	// HalfOpenPerPrefix is how many of them one source prefix may have: an IPv4
	// address, or an IPv6 /56. Zero means 64; at most 65,536.
	HalfOpenPerPrefix int
	// Direct is how many of them may have been started without a cookie, so by
	// a source that may be forged, and of one prefix half of HalfOpenPerPrefix.
	// From there on a ClientHello earns a cookie first. Zero means 256, negative
	// none; at most half of HalfOpen.
	Direct int
	// MaxMessage is the largest message in bytes that is sent to a session; what
	// is larger is dropped. Zero means DefaultMaxMessage; 36 to 1,472.
	MaxMessage int
	// HandshakeTimeout ends a handshake that is not finished. Zero means 10 s;
	// 100 ms to 10 min.
	HandshakeTimeout time.Duration
	// FragmentCap is the most bytes of a handshake message in fragments. Only
	// the ClientKeyExchange may come in fragments, and it has 18 to 38 bytes.
	// Zero means 256; at most 1024.
	FragmentCap int
	// Idle ends a session from which no authentic record has come. Zero means
	// 60 s, which is the longest that the relay waits for a client; 100 ms to 24 h.
	Idle time.Duration
	// Quiet is how long a ClientHello at the source of a living session goes
	// unanswered, counted from the first one, while no record of the session
	// comes. Real clients send one whenever they heard nothing for 2 s, give it
	// up with the next answer to a PING (every 3 s), and begin anew as soon as
	// they are answered. Zero means 2.5 s; at most 1 min.
	Quiet time.Duration
	// Workers is how many goroutines handle handshakes; each source prefix has
	// one of them. Zero means 2; at most 64.
	Workers int
	// Queue is how many datagrams may wait for each of them, 1.5 KB each. Zero
	// means 512; at most 65,536.
	Queue int
}

// withDefaults replaces what is zero.
func (c Config) withDefaults() Config {
	for _, f := range []struct {
		value     *int
		otherwise int
	}{
		{&c.MaxSessions, 65_536},
		{&c.PerIdentity, 4},
		{&c.HalfOpen, 4096},
		{&c.HalfOpenPerPrefix, 64},
		{&c.FragmentCap, 256},
		{&c.MaxMessage, DefaultMaxMessage},
		{&c.Workers, 2},
		{&c.Queue, 512},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
	}
	if c.Direct == 0 {
		c.Direct = min(256, c.HalfOpen/2)
	}
	for _, f := range []struct {
		value     *time.Duration
		otherwise time.Duration
	}{
		{&c.HandshakeTimeout, 10 * time.Second},
		{&c.Idle, time.Minute},
		{&c.Quiet, 2500 * time.Millisecond},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
	}
	return c
}

// validate returns the first problem, with the field's name.
func (c *Config) validate() error {
	if c.PSK == nil {
		return errors.New("dtls: Config.PSK is nil")
	}
	for _, f := range []struct {
		name            string
		value, min, max int
	}{
		{"MaxSessions", c.MaxSessions, 1, 1 << 22},
		{"PerIdentity", c.PerIdentity, 1, 64},
		{"HalfOpen", c.HalfOpen, 2, 1 << 20},
		{"HalfOpenPerPrefix", c.HalfOpenPerPrefix, 2, 1 << 16},
		{"Direct", c.Direct, -1 << 31, c.HalfOpen / 2},
		{"FragmentCap", c.FragmentCap, 1, 1024},
		{"MaxMessage", c.MaxMessage, proto.AcceptedLen, proto.RelayOverhead + proto.MaxContent},
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
