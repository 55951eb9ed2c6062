package fleet

import (
	"context"

	"github.com/ferryrelay/ferry/proto"
)

// The bounds of giving up reservations. What does not fit lapses by itself when
// nobody binds it, after 10 s by default.
const (
	releaseQueue  = 1024
	releaseAtOnce = 4
)

// release is a reservation that nobody will use.
type release struct {
	node Node
	host proto.AllocationID
}

// release gives a reservation up without waiting for the relay.
func (f *Fleet) release(n Node, host proto.AllocationID) {
	select {
	case f.releases <- release{n, host}:
	default:
		f.counts.releasesDropped.Add(1)
	}
}

// releaseAll gives up what is in the queue until ctx ends.
func (f *Fleet) releaseAll(ctx context.Context) {
	for {
		select {
		case r := <-f.releases:
			f.giveUp(ctx, r)
		case <-ctx.Done():
			return
		}
	}
}

func (f *Fleet) giveUp(ctx context.Context, r release) {
	relay, ok := f.dialer.Relay(r.node).(Ender)
	if !ok {
		f.counts.releasesDropped.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	if err := relay.End(ctx, r.host); err != nil {
		f.counts.releasesDropped.Add(1)
		f.log.Debug("a reservation is left to lapse", "relay", r.node.Relay, "error", err)
		return
	}
	f.counts.released.Add(1)
}
