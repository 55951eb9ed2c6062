package alloc

import (
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
	// use. See [PlayerLimitError].
	ErrPlayerLimit = errors.New("alloc: too many live allocations of the player")
	// ErrOutstanding: the player has too many allocations that are reserved and
	// not bound; each counts until it is bound or expires.
	ErrOutstanding = errors.New("alloc: too many allocations reserved and not bound")
	// ErrMigration: the host has left, or may have, and the caller must ask again later. See
	// [MigrationWaitError].
	ErrMigration = errors.New("alloc: the match waits for a host")
	// ErrHostPresent: another player has taken the host's place, or the host goes on. See
	// [HostPresentError].
	ErrHostPresent = errors.New("alloc: the match has a host")
	// ErrHostProof: many players share the caller's token, so a host that leaves has to prove by its
	// own connection data that it is that.
	ErrHostProof = errors.New("alloc: the host's own connection data is missing")
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

// PlayerLimitError is an [ErrPlayerLimit] that names the limit, as engine.PlayerLimits does:
// "hosts", "joiners", "joiners_per_host" or "seats".
type PlayerLimitError struct{ Limit string }

// Error names the limit.
func (e PlayerLimitError) Error() string { return fmt.Sprintf("%v: %s", ErrPlayerLimit, e.Limit) }

// Is reports that e is an ErrPlayerLimit.
func (PlayerLimitError) Is(target error) bool { return target == ErrPlayerLimit }

type unavailableError string

func (e unavailableError) Error() string { return string(e) }

func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }

// MigrationWaitError is an [ErrMigration] with its reason.
type MigrationWaitError struct {
	Reason     string        // in words, for the caller of the API
	RetryAfter time.Duration // positive
}

// Error returns the reason.
func (e MigrationWaitError) Error() string {
	return fmt.Sprintf("%v: %s; ask again in %v", ErrMigration, e.Reason, e.RetryAfter)
}

// Is reports that e is an ErrMigration.
func (MigrationWaitError) Is(target error) bool { return target == ErrMigration }

// HostPresentError is an [ErrHostPresent]: the player joins the host by the join code.
type HostPresentError struct{ Host proto.AllocationID }

// Error names the host.
func (e HostPresentError) Error() string {
	return fmt.Sprintf("%v: allocation %v", ErrHostPresent, e.Host)
}

// Is reports that e is an ErrHostPresent.
func (HostPresentError) Is(target error) bool { return target == ErrHostPresent }

// DeniedError is returned for a reservation that the operator's own rules forbid.
type DeniedError struct {
	// Reason is shown to the player. It may be empty.
	Reason string
}

// Error returns the reason.
func (d DeniedError) Error() string {
	if d.Reason == "" {
		return "alloc: not admitted"
	}
	return "alloc: not admitted: " + d.Reason
}
