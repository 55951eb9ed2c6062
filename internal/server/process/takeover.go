package process

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/upgrade"
)

type takeover struct {
	parent  *upgrade.Parent
	offer   *privateapi.Handover // of its relay
	links   []*os.File           // to the processes that keep WebSockets
	history *os.File             // the pipe from which its history comes; nil: there is none
	log     *slog.Logger

	// Set by receive:
	relay io.Reader // the state of its relay
	state handedState
	to    *localRelay
}

// newTakeover returns what the parent hands over, nil without one.
func newTakeover(parent *upgrade.Parent, log *slog.Logger) (*takeover, error) {
	if parent == nil {
		return nil, nil
	}
	o := new(privateapi.Handover)
	if err := json.Unmarshal(parent.Offer, o); err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	t := &takeover{parent: parent, offer: o, log: log}
	o.Sockets = make([][]*os.File, len(o.Listen))
	for i := range o.Listen {
		for f := parent.Take(udpName(i, 0)); f != nil; f = parent.Take(udpName(i, len(o.Sockets[i]))) {
			o.Sockets[i] = append(o.Sockets[i], f)
		}
	}
	for f := parent.Take(linkName(0)); f != nil; f = parent.Take(linkName(len(t.links))) {
		t.links = append(t.links, f)
	}
	t.history = parent.Take(historyFile)
	o.OnResume = t.resume
	o.Receive = func(context.Context) (io.Reader, error) { return t.relay, nil }
	return t, nil
}

// receive waits until the process before this one has stopped, passes what that has written
// last to the relay of this one, and loads the file that it had.
func (t *takeover) receive(ctx context.Context, to *localRelay) error {
	if err := t.parent.Prepared(); err != nil {
		return err
	}
	relay, rest, err := t.parent.Receive(ctx)
	if err != nil {
		return err
	}
	t.relay, t.to = relay, to
	err = json.Unmarshal(rest, &t.state)
	if err == nil {
		err = to.engine.TakeOver(t.state.Sessions)
	}
	switch {
	case err != nil:
	case to.engine.WebSocket != nil:
		err = to.engine.WebSocket.Private().TakeOver(t.links, t.state.Held)
	default:
		for _, f := range t.links {
			_ = f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	return to.usage.load()
}

// resume ends the process before this one, whose matches go on.
func (t *takeover) resume() {
	t.to.restoreCodes()
	t.to.codes.migrating.restore(t.to.codes.Store, t.state.Migrating)
	if err := t.parent.Serving(); err != nil {
		t.log.Warn("upgrade: the process before this one does not end", "error", err)
	}
	t.log.Info("upgrade: this process has taken over", "allocations", t.to.engine.Stats().Allocations)
}
