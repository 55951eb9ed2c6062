package app

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/statefile"
)

// restart is what is known of the run before, and for the next one.
type restart struct {
	boot    uint64        // of this run
	left    int           // allocations that the run before left
	lost    atomic.Uint64 // of them, those that did not come back in time
	storing atomic.Bool   // the state file takes what a restart must know
}

// awaited returns how many allocations may yet come back.
func (r *restart) awaited(rebuilt uint64) int {
	return max(r.left-int(rebuilt)-int(r.lost.Load()), 0)
}

// sessionsMaxAge is longer than any client waits for a relay that is gone, and
// short enough that the relay does not believe a copy of the file from a backup.
const sessionsMaxAge = 2 * time.Minute

// openSessions opens the file of DTLS sessions. The relay runs without it as well.
func (a *App) openSessions(capacity int) *statefile.Sessions {
	if a.opts.SessionFile == "" || a.opts.Config.RecoverFor == 0 {
		return nil
	}
	log := a.opts.Logger.With("file", a.opts.SessionFile)
	onError := func(err error) {
		log.Error("session file: cannot be written; DTLS sessions will not outlive this process", "error", err)
	}
	s, err := statefile.OpenSessions(statefile.SessionsConfig{
		Path: a.opts.SessionFile, Capacity: min(2*capacity, statefile.MaxCapacity), Relay: a.opts.Identity.Relay,
		MaxAge: sessionsMaxAge, OnError: onError,
	})
	if err != nil {
		onError(err)
		return nil
	}
	a.add(part{"session file", func(ctx context.Context) error {
		<-ctx.Done()
		return s.Close()
	}, s.Close}) // It ends after the relay, which is added later.
	log.Info("session file: open", "dtls_sessions_that_may_go_on", len(s.Found()))
	return s
}

// logStateReport writes one line about what the previous run left.
func (a *App) logStateReport() {
	r := a.relay.StateReport()
	if !r.Opened {
		return
	}
	log, window := a.opts.Logger.With("file", a.opts.StateFile), a.opts.Config.RecoverFor.Round(time.Millisecond).String()
	a.restart.left = r.Allocations
	switch {
	case a.opts.Fresh:
		log.Info("state file: new")
	case r.Complete:
		log.Info("state file: complete", "allocations", r.Allocations, "may_come_back_within", window)
	case errors.Is(r.Err, engine.ErrStateAbsent):
		log.Warn("state file: none was there, so after this start whoever was here before is believed", "may_come_back_within", window)
	default:
		log.Warn("state file: not complete, so after this start it is a hint only, and whoever was here before is believed",
			"why", r.Err, "allocations", r.Allocations, "damaged", r.Damaged, "may_come_back_within", window)
	}
}

// onStateError raises the alarm once: the relay runs on.
func (a *App) onStateError(err error) {
	if errors.Is(err, engine.ErrStateFull) {
		a.opts.Logger.Error("state file: full, so that after a crash allocations that had ended may come back", "file", a.opts.StateFile)
		return
	}
	a.restart.storing.Store(false)
	a.opts.Logger.Error("state file: it cannot be written. The relay goes on; but after a crash join codes are lost, and allocations that had ended may come back",
		"file", a.opts.StateFile, "error", err)
}
