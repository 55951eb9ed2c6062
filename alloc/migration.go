package alloc

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/internal/trace"
	"github.com/ferryrelay/ferry/proto"
)

// Errors of a migration.
var (
	// ErrMigration: the host has left, and one of its players may take its place. The join
	// code leads to the new host when one has done so. See [MigrationError].
	ErrMigration = errors.New("alloc: the host has left, and one of its players may take its place")
	// ErrHostPresent: the host has not left, as far as its relay knows, or another player has
	// taken its place. See [HostPresentError].
	ErrHostPresent = errors.New("alloc: the match has a host")
)

// MigrationError is an [ErrMigration] with the player that is taking the host's place.
type MigrationError struct {
	Candidate proto.AllocationID // the player's allocation; zero: none has asked yet
}

// Error names the candidate.
func (e MigrationError) Error() string {
	if e.Candidate.IsZero() {
		return ErrMigration.Error()
	}
	return fmt.Sprintf("%v; allocation %v does so now", ErrMigration, e.Candidate)
}

// Is reports that e is an ErrMigration.
func (MigrationError) Is(target error) bool { return target == ErrMigration }

// HostPresentError is an [ErrHostPresent] if the join code leads to another host than the one
// that the player has lost.
type HostPresentError struct{ Host proto.AllocationID }

// Error names the host.
func (e HostPresentError) Error() string {
	return fmt.Sprintf("%v: allocation %v", ErrHostPresent, e.Host)
}

// Is reports that e is an ErrHostPresent.
func (HostPresentError) Is(target error) bool { return target == ErrHostPresent }

// MigrationRequest asks the relay of a host that has left whether a player may take its
// place.
type MigrationRequest struct {
	Tenant Tenant
	// Player is the hash of the caller, who must be the player that the ticket was issued
	// to. Zero: a backend, which acts for any player of its tenant.
	Player PlayerHash
	// Host is the host that has left.
	Host proto.AllocationID
	// Ticket is the HostConnectionData of the player's reservation.
	Ticket ConnectionData
	// Holder is the host to which the join code leads: Host, or one that was the NewHost of an
	// earlier request for Host. Any other is ErrNotFound.
	Holder proto.AllocationID
	// NewHost is zero in a request for permission. A second request with the new host of the
	// player records that it is about to get the code.
	NewHost proto.AllocationID
}

// Migration is the permission to take a host's place.
type Migration struct {
	Player         PlayerHash // that of the ticket
	MaxConnections int        // of the former host
	Region         string     // of the former host's relay
}

// MigrationRelay is a [Relay] whose matches survive their hosts. *engine.Server is one.
type MigrationRelay interface {
	Relay
	// Migrate permits one player of a match to take the place of a host that has ended, or
	// that has been silent for some seconds, which ends it. The permission lasts for some
	// seconds, in which all other players get a [MigrationError]; then another player may
	// get it, so that it alone does not decide who is the host: [CodeMover] does. Errors:
	// ErrNotFound for a host that ended too long ago and for a ticket that is not of a live
	// allocation of that match, tenant and player; ErrHostPresent; MigrationError;
	// ErrUnavailable.
	//
	// While a player may take a host's place, ReserveJoiner returns a MigrationError for it.
	Migrate(ctx context.Context, r MigrationRequest) (Migration, error)
}

// CodeMover is a [Store] in which a join code can pass from a host to another one.
type CodeMover interface {
	Store
	// MoveCode makes a code of from, or one that leads nowhere, the code of to. It reports
	// false, and changes nothing, when the code leads to another host or to has a code. It
	// is atomic: of several calls with the same from, one succeeds.
	MoveCode(ctx context.Context, t Tenant, code string, from, to proto.AllocationID) (bool, error)
}

// MigrationClaim is the request of a player to take the place of its host.
type MigrationClaim struct {
	Code string
	// Host is the host that the player has lost. Zero: the one to which the code leads,
	// which may be another one by now; a player that calls again must name it.
	Host proto.AllocationID
	// Ticket is the HostConnectionData of the player's own reservation.
	Ticket ConnectionData
}

// HostMigration reports whether players may take the place of a host that has left.
func (s *Service) HostMigration() bool { return s.candidates != nil }

// Migrate reserves an allocation for a host that takes the place of one that has left, with
// the same join code and the same number of connections. Of all players of the match one
// succeeds; the others get ErrMigration, and then ErrHostPresent, and join by the code. A
// player that did not get the answer may call again until it has bound the allocation: the
// last one counts. Errors: ErrTenantName, ErrCodeMalformed, ErrCodeNotFound, ErrNotFound,
// those errors, and the ones of Allocate.
func (s *Service) Migrate(ctx context.Context, c Caller, claim MigrationClaim) (Reservation, error) {
	res, err := s.migrate(ctx, c, claim)
	switch {
	case errors.Is(err, ErrCodeNotFound):
		s.failedJoins.add(c.Tenant.Hash(), s.elapsed())
		fallthrough
	case err != nil:
		return Reservation{}, err
	}
	return res, nil
}

func (s *Service) migrate(ctx context.Context, c Caller, claim MigrationClaim) (Reservation, error) {
	if s.candidates == nil {
		return Reservation{}, ErrNotFound
	}
	if err := c.Tenant.Validate(); err != nil {
		return Reservation{}, err
	}
	code, err := ParseCode(claim.Code)
	if err != nil {
		return Reservation{}, err
	}
	holder, err := s.store.HostOf(ctx, c.Tenant, code)
	if err != nil {
		return Reservation{}, fmt.Errorf("look up the host: %w", err)
	}
	request := MigrationRequest{Tenant: c.Tenant, Host: claim.Host, Holder: holder, Ticket: claim.Ticket}
	if request.Host.IsZero() {
		request.Host = holder
	}
	if !c.Server {
		request.Player = HashPlayer(c.Tenant, c.Player)
	}
	granted, err := s.permission(ctx, request)
	if err != nil {
		return Reservation{}, fmt.Errorf("succeed a host: %w", err)
	}
	res, err := s.reserveHost(ctx, c, granted.Player, granted.MaxConnections, granted.Region)
	if err != nil {
		return Reservation{}, err
	}
	request.NewHost = res.ID
	if _, err := s.candidates.Migrate(ctx, request); err != nil {
		return Reservation{}, fmt.Errorf("succeed a host: %w", err)
	}
	return res, s.handCode(ctx, c.Tenant, code, holder, res.ID)
}

// permission asks the relay of the lost host. The code may lead to one of its newHosts by now: to
// one of the same player that it has not bound, since it did not get the answer, or to one
// that has ended too. Any other is the host of the match, or of another match.
func (s *Service) permission(ctx context.Context, r MigrationRequest) (Migration, error) {
	holder := r.Holder
	granted, err := s.candidates.Migrate(ctx, r)
	if holder == r.Host && !errors.Is(err, ErrNotFound) {
		return granted, err
	}
	d, there := s.relay.Describe(ctx, holder)
	switch {
	case there == nil && (err != nil || d.Bound || d.Player != granted.Player):
		return Migration{}, HostPresentError{holder}
	case there != nil && !errors.Is(there, ErrNotFound):
		return Migration{}, there
	}
	return granted, err
}

// handCode makes the code lead to the new host. Its relay keeps the code first: otherwise the
// code would end with a host that its player never binds, and no player could take the former
// host's place any more. A reservation that does not get the code is bound by no client, and
// expires; so a call whose caller has disconnected moves nothing.
func (s *Service) handCode(ctx context.Context, t Tenant, code string, from, to proto.AllocationID) error {
	if err := s.keep(ctx, to, code); err != nil {
		return fmt.Errorf("%w: %v", ErrUnavailable, err) // An ErrNotFound would be final.
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	ctx, span := trace.Start(ctx, "store.MoveCode")
	moved, err := s.codes.MoveCode(ctx, t, code, from, to)
	span.End(err)
	switch {
	case err != nil:
		return fmt.Errorf("move the join code: %w", err)
	case !moved:
		return ErrHostPresent
	}
	return nil
}
