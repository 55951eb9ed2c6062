package engine

import (
	"math"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// messageSizes are the sizes in bytes of RELAYs by the receiver's way: up to safe
// every client takes them, above most they are dropped.
type messageSizes struct{ safe, most [endpoint.KindWS + 1]int }

// messageSizes returns what the transports say; plain UDP has no limit but
// MaxContent.
func (c *Config) messageSizes() (m messageSizes) {
	for kind := range m.most {
		m.safe[kind], m.most[kind] = math.MaxInt, math.MaxInt
	}
	if c.Records != nil {
		m.most[endpoint.KindDTLS] = c.Records.MaxMessage()
		m.safe[endpoint.KindDTLS] = min(c.Records.SafeMessage(), m.most[endpoint.KindDTLS])
	}
	for _, t := range c.Transports {
		m.safe[t.Kind()], m.most[t.Kind()] = t.MaxMessage(), t.MaxMessage()
	}
	return m
}

// largeMessage is the part of a command that reports a message; size 0: the
// command is none.
type largeMessage struct {
	to          endpoint.Kind
	size, limit uint16
	dropped     bool
}

// reportLarge handles a message that not every client behind the peer's way
// takes, and reports whether it is dropped. The first of a match is reported to
// control; if the ring is full, the next one is.
//
//go:noinline
func (w *worker) reportLarge(now int64, sender, peer *table.Entry, size int) (dropped bool) {
	kind, host := peer.Endpoint.Kind(), sender
	if sender.Role != table.RoleHost {
		host = peer
	}
	limit := w.shared.rules.messages.safe[kind]
	if most := w.shared.rules.messages.most[kind]; size > most {
		dropped, limit = true, most
		w.shared.table.LargeMessages(peer.Handle).AddDrop()
	}
	match := w.shared.table.LargeMessages(host.Handle)
	if !match.TakeReport() {
		return dropped
	}
	_, outcome := w.hand(known, &command{
		kind: proto.TypeRelay, from: sender.Endpoint, sender: *sender, peer: peer.ID, now: now,
		claims: claims{match: host.ID},
		large:  largeMessage{to: kind, size: uint16(size), limit: uint16(limit), dropped: dropped},
	})
	if outcome != handedOver {
		match.ReturnReport()
	}
	return dropped
}

// tellLarge tells of the first message of a match that was too large.
func (c *control) tellLarge(cmd *command) {
	if c.hooks.OnLargeMessage != nil {
		c.hooks.OnLargeMessage(LargeMessageEvent{
			Match: cmd.claims.match, From: cmd.sender.ID, To: cmd.peer,
			FromKind: cmd.from.Kind(), ToKind: cmd.large.to,
			Size: int(cmd.large.size), Limit: int(cmd.large.limit), Dropped: cmd.large.dropped,
		})
	}
}
