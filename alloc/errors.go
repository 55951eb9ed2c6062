package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// Errors of a [Relay], a [Store] and a [Service]. Package httpapi maps each to a status and a
// code.
var (
	// ErrNotFound: it does not exist, has ended, or belongs to another caller.
	ErrNotFound = errors.New("alloc: allocation not found")
	// ErrCodeNotFound: a well-formed join code that no live host has.
	ErrCodeNotFound = errors.New("alloc: join code not found")
	// ErrCodeMalformed: not 6 to 12 symbols of the join code alphabet.
	ErrCodeMalformed = errors.New("alloc: malformed join code")
	// ErrMaxConnections: maxConnections is not within 1 and the configured maximum.
	ErrMaxConnections = errors.New("alloc: maxConnections out of range")
	ErrRegion         = errors.New("alloc: region not found")
	ErrFull           = errors.New("alloc: the relay is full")
	// ErrUnavailable: the relay is not running or did not answer in time, or the
	// host may still come back after a restart.
	ErrUnavailable = errors.New("alloc: relay unavailable")
	// ErrStoreUnavailable is an ErrUnavailable caused by the store of a fleet: it
	// did not answer, or relays have not yet restored what it lost.
	ErrStoreUnavailable error = unavailableError("alloc: store unavailable")
	// ErrNoRelay is an ErrUnavailable of a host: no relay of the region runs, as far as the
	// fleet knows.
	ErrNoRelay error = unavailableError("alloc: no relay of the region runs")
	// ErrAdmissionUnavailable is an ErrUnavailable caused by the operator's
	// admission hook, which gave no answer.
	ErrAdmissionUnavailable error = unavailableError("alloc: admission unavailable")
	// ErrDraining: the relay is shutting down and accepts no new hosts.
	ErrDraining = errors.New("alloc: relay is draining")
	// ErrPlayerLimit: the player has as much at the relay as one player may, and all of it is in
	// use. See [RefusedError].
	ErrPlayerLimit = errors.New("alloc: too many live allocations of the player")
	// ErrOutstanding: the player has too many allocations that are reserved and
	// not bound; each counts until it is bound or expires.
	ErrOutstanding = errors.New("alloc: too many allocations reserved and not bound")
	// ErrMigration: the host has left, or may have, and the caller must ask again later. See
	// [RefusedError].
	ErrMigration = errors.New("alloc: the match waits for a host")
	// ErrHostPresent: another player has taken the host's place, or the host goes on. See
	// [RefusedError].
	ErrHostPresent = errors.New("alloc: the match has a host")
	// ErrHostProof: many players share the caller's token, so a host that leaves has to prove by its
	// own connection data that it is that.
	ErrHostProof = errors.New("alloc: the host's own connection data is missing")
	// ErrDenied, of ServiceConfig.Admit: the operator's own rules forbid it. See [RefusedError].
	ErrDenied = errors.New("alloc: not admitted")
	// ErrProjectQuota, of ServiceConfig.Admit: it succeeds again after an allocation has ended.
	ErrProjectQuota = errors.New("alloc: project quota exceeded")
	// ErrProjectInactive, of ServiceConfig.Admit: the operator has switched the project off.
	ErrProjectInactive = errors.New("alloc: the project is not active")
	// ErrTenantName is returned for a project or environment name that is longer
	// than [MaxTenantName] or holds a NUL byte.
	ErrTenantName = errors.New("alloc: project or environment name is longer than 56 bytes or holds a NUL")
	// ErrConfig is wrapped by the errors of [NewService], with the name of the field, and of [NewPlacer].
	ErrConfig = errors.New("alloc: invalid configuration")
	// ErrInHook is returned by a method that takes a context when a function of the embedding program
	// calls it: of a [Service] in a function of its [ServiceConfig], of an engine.Server in a hook or a
	// callback of any relay. The call would wait for the goroutine that waits for it. A Server also
	// returns it to calls that wait while a hook has run for 5 s. It is an [ErrUnavailable].
	ErrInHook = fmt.Errorf("%w: a hook must not call back", ErrUnavailable)
)

type unavailableError string

func (e unavailableError) Error() string { return string(e) }

func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }

// RefusedError is an [ErrDenied], [ErrPlayerLimit], [ErrMigration] or [ErrHostPresent] with what its
// caller should know.
type RefusedError struct {
	Err error // one of these; nil: ErrDenied
	// Reason is shown to the player, and may be empty. Of an ErrPlayerLimit it is the limit, as
	// engine.PlayerLimits names it: "hosts", "joiners", "joiners_per_host" or "seats".
	Reason     string
	RetryAfter time.Duration      // of an ErrMigration; positive
	Host       proto.AllocationID // of an ErrHostPresent: the player joins it by the join code
}

// Unwrap returns Err.
func (e RefusedError) Unwrap() error { return cmp.Or(e.Err, ErrDenied) }

// Error returns all of it.
func (e RefusedError) Error() string {
	text := e.Unwrap().Error()
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; ask again in %v", e.RetryAfter)
	}
	if !e.Host.IsZero() {
		text += fmt.Sprintf(": allocation %v", e.Host)
	}
	return text
}
