// Package events is the stream of what happens in a process of Ferry. The parts that cause
// events do not know the subscribers of the topics of a [Stream].
//
// A topic calls its subscribers one after another, in the order in which they subscribed, on the
// goroutine of the publisher: events of the relay on those of [engine.Hooks], those of the API on
// the goroutines of calls, concurrently. So a subscriber must not block, and must not call the
// relay. Publishing allocates nothing.
package events

import (
	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// Topic is one kind of event. The zero value has no subscriber.
type Topic[E any] struct{ subscribers []func(E) }

// Subscribe must not be called once events are published.
func (t *Topic[E]) Subscribe(f func(E)) { t.subscribers = append(t.subscribers, f) }

func (t *Topic[E]) Publish(e E) {
	for _, f := range t.subscribers {
		f(e)
	}
}

// Stream has a topic for each kind of event. The zero value is ready for use.
type Stream struct {
	// Of the relay: see the fields of engine.Hooks and privateapi.Hooks with the same names.
	Reserve      Topic[engine.ReserveEvent]
	Bind         Topic[engine.BindEvent]
	Connect      Topic[engine.ConnectEvent]
	Disconnect   Topic[engine.DisconnectEvent]
	End          Topic[engine.EndEvent]
	Return       Topic[engine.ReserveEvent]
	Migrate      Topic[engine.MigrateEvent]
	MigrationEnd Topic[proto.AllocationID]
	PlayerLimit  Topic[privateapi.PlayerLimitEvent]
	Code         Topic[privateapi.CodeEvent]
	Refuse       Topic[privateapi.RefuseEvent]
	LargeMessage Topic[privateapi.LargeMessageEvent]

	// Of the API.
	Reservation Topic[alloc.ReservationEvent] // an allocation was reserved for a caller
	Call        Topic[httpapi.Request]

	// Of the process.
	Ready Topic[Ready]
	Drain Topic[Drain]
}

// Ready reports that the process serves. It is published once.
type Ready struct {
	AdminURL string // of the admin pages
}

type Drain struct{ Draining bool }

// RelayHooks returns hooks that publish the events of a relay, without Admit, which is a question.
func (s *Stream) RelayHooks() engine.Hooks {
	return engine.Hooks{
		OnReserve: s.Reserve.Publish, OnBind: s.Bind.Publish, OnConnect: s.Connect.Publish, OnDisconnect: s.Disconnect.Publish,
		OnEnd: s.End.Publish, OnReturn: s.Return.Publish, OnMigrate: s.Migrate.Publish, OnMigrationEnd: s.MigrationEnd.Publish,
		Private: privateapi.Hooks{
			OnPlayerLimit: s.PlayerLimit.Publish, OnCode: s.Code.Publish, OnRefuse: s.Refuse.Publish, OnLargeMessage: s.LargeMessage.Publish,
		},
	}
}
