package alloc

import (
	"context"
	"errors"

	"github.com/ferryrelay/ferry/proto"
)

// Errors that ServiceConfig.Admit answers with, besides ErrUnavailable for who
// cannot tell now.
var (
	// ErrProjectQuota: the project has as much as it may; something has to end.
	ErrProjectQuota = errors.New("alloc: the project has as much as it may")
	// ErrProjectInactive: the operator has switched the project off.
	ErrProjectInactive = errors.New("alloc: the project is not active")
)

// Denied is the error of a reservation that the operator's own rules forbid.
type Denied struct {
	// Reason is for the player. It may be empty.
	Reason string
}

// Error returns the reason.
func (d Denied) Error() string {
	if d.Reason == "" {
		return "alloc: not admitted"
	}
	return "alloc: not admitted: " + d.Reason
}

// Ask is a reservation that somebody wants.
type Ask struct {
	Caller Caller
	// Role is RoleHost or RoleJoiner.
	Role Role
	// MaxConnections and Region are what a host asked for, the default region
	// if it named none; zero for a joiner.
	MaxConnections int
	Region         string
	// Host is where a joiner's code leads; zero for a host.
	Host proto.AllocationID
}

// Made is a reservation that was made.
type Made struct {
	Ask
	ID proto.AllocationID
}

// reserve makes a reservation, and counts it until its player has bound it.
func (s *Service) reserve(ctx context.Context, a Ask, player PlayerHash, ask func() (Reservation, error)) (Reservation, error) {
	counts := s.outstanding != nil && !a.Caller.Server && a.Caller.Player != ""
	if counts && !s.outstanding.begin(player, s.since()) {
		return Reservation{}, ErrOutstanding
	}
	res, err := s.admitted(ctx, a, ask)
	if err != nil {
		if counts {
			s.outstanding.cancel(player)
		}
		return Reservation{}, err
	}
	if counts {
		s.outstanding.made(player, res.ID, s.since())
	}
	if s.onReserve != nil {
		s.onReserve(Made{a, res.ID})
	}
	return res, nil
}

// admitted makes a reservation that nobody objects to.
func (s *Service) admitted(ctx context.Context, a Ask, ask func() (Reservation, error)) (Reservation, error) {
	if s.admit != nil {
		if err := s.admit(ctx, a); err != nil {
			return Reservation{}, err
		}
	}
	return ask()
}
