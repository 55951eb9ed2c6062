package app

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/timeline"
	"github.com/ferryrelay/ferry/proto"
)

// timelineEvents are the events that a relay keeps, about 10 MiB: those of the last 10,000
// allocations.
const timelineEvents = 50_000

// history writes what happens to allocations into a timeline, and explains it. Hooks of the
// relay call it; nil, as in a process without a relay, does nothing.
type history struct {
	line *timeline.Timeline
	port uint16 // of the relay
	now  func() time.Time
}

func newHistory() *history {
	return &history{line: timeline.New(timelineEvents), now: time.Now}
}

func (h *history) add(e timeline.Event) {
	if h != nil {
		h.line.Add(e, h.now())
	}
}

func (h *history) reserved(e engine.ReserveEvent) {
	h.add(timeline.Event{ID: e.ID, Peer: e.Host, Kind: timeline.Reserved})
	if e.Role == alloc.RoleJoiner {
		h.add(timeline.Event{ID: e.Host, Peer: e.ID, Kind: timeline.Joined})
	}
}

func (h *history) keepCode(keep keepCode) keepCode {
	return func(ctx context.Context, host proto.AllocationID, code string) error {
		err := keep(ctx, host, code)
		if err == nil {
			h.add(timeline.Event{ID: host, Kind: timeline.CodeMade})
		}
		return err
	}
}

func (h *history) bound(e engine.BindEvent) {
	h.add(timeline.Event{ID: e.ID, Endpoint: e.From, Kind: timeline.Bound})
}

func (h *history) linked(e engine.ConnectEvent) {
	h.add(timeline.Event{ID: e.Joiner, Peer: e.Host, Kind: timeline.Linked})
	h.add(timeline.Event{ID: e.Host, Peer: e.Joiner, Kind: timeline.Linked})
}

func (h *history) unlinked(e engine.DisconnectEvent) {
	h.add(timeline.Event{ID: e.From, Peer: e.To, Kind: timeline.Unlinked})
	h.add(timeline.Event{ID: e.To, Peer: e.From, Kind: timeline.Unlinked})
}

func (h *history) ended(e engine.EndEvent) {
	h.add(timeline.Event{ID: e.ID, Kind: timeline.Ended, Reason: e.Reason.String()})
}

// why returns the events of an allocation and what they mean.
func (h *history) why(id proto.AllocationID) admin.Why {
	events := h.line.Of(id)
	p := timeline.Player{Host: true, Events: events, UDPPort: h.port, Now: h.now()}
	for _, e := range events {
		if e.Kind == timeline.Reserved && !e.Peer.IsZero() {
			p.Host, p.HostEvents = false, h.line.Of(e.Peer)
		}
	}
	answer := admin.Why{ID: id.String(), Because: timeline.Explain(p)}
	for _, e := range events {
		row := admin.WhyEvent{What: e.Kind.String(), Reason: e.Reason, First: e.First, Last: e.Last, Count: e.Count}
		if !e.Peer.IsZero() {
			row.Peer = e.Peer.String()
		}
		if e.Endpoint.IsValid() {
			row.Endpoint = e.Endpoint.String()
		}
		answer.Events = append(answer.Events, row)
	}
	return answer
}
