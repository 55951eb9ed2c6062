package dtls

import "sync/atomic"

// Event is something that is counted: a step of a handshake, the end of a
// session, or the reason for which a datagram or record was dropped.
type Event uint8

// What is counted. Events up to Idle are steps, the rest are drops.
const (
	// Hello: a ClientHello that could be parsed.
	Hello Event = iota
	// CookieSent: one was answered with a HelloVerifyRequest.
	CookieSent
	// Answered: one was answered with a ServerHello, and a handshake is under way.
	Answered
	// Resent: a ServerHello or a Finished went out again, as asked.
	Resent
	// Established: a handshake was finished.
	Established
	// TimedOut: a handshake was not finished in time.
	TimedOut
	// Evicted: the oldest handshake ended, since [Config].HalfOpen were under way
	// and another client had proven that it is there.
	Evicted
	// TakenOver: a session ended since another one was made at its source.
	TakenOver
	// Outnumbered: a session ended since its allocation made more than
	// [Config].PerIdentity.
	Outnumbered
	// Resumed: a session of the process before goes on.
	Resumed
	// Closed: a session ended with its client's close_notify or fatal alert.
	Closed
	// Idle: a session ended since no authentic record came for [Config].Idle.
	Idle

	// DropMalformed: no record, handshake message or hello of DTLS 1.2.
	DropMalformed
	// DropForeign: a type of record that no client sends.
	DropForeign
	// DropOversize: a datagram for the handshake with more than 1500 bytes.
	DropOversize
	// DropQueue: the queue for the handshake was full.
	DropQueue
	// DropAlert: an alert in plain text, which says nothing.
	DropAlert
	// DropNoSession: a message or alert from where no session lives.
	DropNoSession
	// DropUndecryptable: a record that the key of the session does not open.
	DropUndecryptable
	// DropReplayed: a record that was received before, or is too old to tell.
	DropReplayed
	// DropTrailing: what followed the first message in a datagram, or in one of a
	// handshake a ClientHello or what was answered.
	DropTrailing
	// DropUnexpected: an authentic record that is neither a message nor an alert
	// nor a Finished, such as the wish to negotiate again.
	DropUnexpected
	// DropStray: a part of a handshake that is not under way, or out of turn.
	DropStray
	// DropFragments: a message in more bytes than [Config].FragmentCap, a
	// ClientHello in fragments, or fragments out of order.
	DropFragments
	// DropQuiet: a ClientHello where a session lives, see [Config].Quiet.
	DropQuiet
	// DropSuite: a ClientHello without a cipher suite that we have.
	DropSuite
	// DropCookie: a cookie that is not ours or too old; a new one was sent.
	DropCookie
	// DropPrefixFull: a handshake beyond [Config].HalfOpenPerPrefix.
	DropPrefixFull
	// DropHalfOpenFull: a handshake beyond [Config].HalfOpen, none of which could
	// be evicted.
	DropHalfOpenFull
	// DropSessionsFull: a finished handshake beyond [Config].MaxSessions.
	DropSessionsFull
	// DropIdentity: a finished handshake for no allocation that we know.
	DropIdentity
	// DropKey: a Finished that was not made with the key of its allocation.
	DropKey
	// DropAttempts: a source at which keys were derived in vain too often.
	DropAttempts
	// DropUnstored: an authentic record whose number could not be reserved in the
	// file of sessions, which can be neither written nor removed.
	DropUnstored

	// Events is the number of events.
	Events
)

var eventNames = [Events]string{
	"hello", "cookie_sent", "answered", "resent", "established", "timed_out", "evicted",
	"taken_over", "outnumbered", "resumed", "closed", "idle",
	"drop_malformed", "drop_foreign", "drop_oversize", "drop_queue", "drop_alert",
	"drop_no_session", "drop_undecryptable", "drop_replayed", "drop_trailing",
	"drop_unexpected", "drop_stray", "drop_fragments", "drop_quiet", "drop_suite",
	"drop_cookie", "drop_prefix_full", "drop_half_open_full", "drop_sessions_full",
	"drop_identity", "drop_key", "drop_attempts", "drop_unstored",
}

// String names the event as in a metric, such as "drop_replayed".
func (e Event) String() string {
	if e >= Events {
		return "unknown"
	}
	return eventNames[e]
}

// Stats are counts since [New], and what there is now.
type Stats struct {
	// Counts by event.
	Counts [Events]uint64
	// Sessions that are established, those included that ended a moment ago.
	Sessions int
	// HalfOpen handshakes, and how many of them are of a source that may be
	// forged, since it was not asked for a cookie.
	HalfOpen, Direct int
}

// counters count events. Any goroutine may use them.
type counters [Events]atomic.Uint64

func (c *counters) count(e Event) { c[e].Add(1) }
