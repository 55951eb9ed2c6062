package fleet

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// ErrConfig is returned by [New] and [NewAnnouncer], with the field's name.
var ErrConfig = errors.New("fleet: bad configuration")

// The limits of time of a [Fleet]; doc.go gives the reasons.
const (
	// PollEvery is how often a process reads the registry.
	PollEvery = time.Second
	// ReserveWithin bounds a reservation, over all the relays that it tries.
	ReserveWithin = 2 * time.Second
	// HealFor is how long after the store has failed what it does not have may
	// still be on its way back into it.
	HealFor = DeadAfter + 4*time.Second

	pollLeast  = 250 * time.Millisecond
	staleAfter = 3 * PollEvery
	askWithin  = 2 * time.Second
	callWithin = time.Second
)

// Config is what a [Fleet] is made of.
type Config struct {
	// Registry, Directory and Dialer are the fleet. Required.
	Registry  Registry
	Directory Directory
	Dialer    Dialer
	// Defaults are the regions of projects whose callers name none, by project.
	Defaults map[string]string
	// Hints are the regions of clients, where neither caller nor project names
	// one.
	Hints []Hint
	// Seed makes the choice among relays repeatable. Zero: a random one.
	Seed uint64
	// Logger is told when the store fails and when it is back, and of relays
	// that do not answer. Nil: silent.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Registry == nil:
		return fmt.Errorf("%w: Registry is nil", ErrConfig)
	case c.Directory == nil:
		return fmt.Errorf("%w: Directory is nil", ErrConfig)
	case c.Dialer == nil:
		return fmt.Errorf("%w: Dialer is nil", ErrConfig)
	}
	for project, region := range c.Defaults {
		if region == "" {
			return fmt.Errorf("%w: Defaults has no region for project %q", ErrConfig, project)
		}
	}
	return nil
}

func orSilent(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}
