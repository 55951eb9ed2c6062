package alloc

import (
	"context"
	"fmt"

	"github.com/ferryrelay/ferry/proto"
)

// MigrationRequest asks for an allocation with which a player takes its host's place.
type MigrationRequest struct {
	Caller // as for HostRequest
	// PlayerHash is that of the player that the ticket must have been issued to. Zero: a backend,
	// which acts for any player of its tenant.
	PlayerHash PlayerHash
	// Host is the host to which the join code leads: that of the ticket, or one that has
	// taken its place.
	Host proto.AllocationID
	// Code is the join code, which the relay gives to the host that is bound first.
	Code   string
	Ticket ConnectionData
}

// LeaveRequest says that a host leaves.
type LeaveRequest struct {
	Caller                // as for HostRequest
	PlayerHash PlayerHash // must own the host. Zero: a backend
	Host       proto.AllocationID
	// Proof is the host's own ConnectionData. Zero: none, and the caller is a backend or an
	// individual player.
	Proof ConnectionData
}

// HostMigration reports whether players may take the place of a host that has left.
func (s *Service) HostMigration() bool { return s.hostMigration }

// Migrate reserves an allocation with which a player takes the place of its host, once it has
// bound it: see [Relay]. The ticket is the HostConnectionData of the player's own reservation.
// Errors: ErrTenantName, ErrCodeMalformed, ErrCodeNotFound, ErrOutstanding, those of MigrateHost and
// those of ServiceConfig.Admit.
func (s *Service) Migrate(ctx context.Context, c Caller, code string, ticket ConnectionData) (res Reservation, err error) {
	if inHook.Running() {
		return Reservation{}, ErrInHook
	}
	defer func() { s.failedJoins.addError(c.Tenant, err, s.elapsed()) }()
	if !s.hostMigration {
		return Reservation{}, ErrNotFound
	}
	code, host, err := s.lookUp(ctx, c.Tenant, code)
	if err != nil {
		return Reservation{}, err
	}
	player := actsFor(c)
	if c.Individual { // Also one that a backend names.
		player = HashPlayer(c.Tenant, c.Player)
	}
	r := MigrationRequest{Caller: c, PlayerHash: player, Host: host, Code: code, Ticket: ticket}
	res, err = s.reserve(ctx, AdmissionRequest{Caller: c, Role: RoleHost, Host: host}, r.PlayerHash, func() (Reservation, error) {
		return s.relay.MigrateHost(ctx, r)
	})
	if err != nil {
		return Reservation{}, fmt.Errorf("migrate a host: %w", err)
	}
	return s.regions.setDefault(res), nil
}

// Leave records that a host leaves, so that its players may take its place at once. It may
// be called again. The proof is the host's own ConnectionData; it may be zero for a backend or an
// individual player. Errors: ErrTenantName, ErrHostProof, ErrUnavailable, and ErrNotFound for an
// allocation that has ended, is a joiner's, or belongs to another caller, and for a wrong proof.
func (s *Service) Leave(ctx context.Context, c Caller, host proto.AllocationID, proof ConnectionData) error {
	if inHook.Running() {
		return ErrInHook
	}
	if !s.hostMigration {
		return ErrNotFound
	}
	if err := c.Tenant.Validate(); err != nil {
		return err
	}
	if !c.Server && !c.Individual && proof == (ConnectionData{}) {
		return ErrHostProof
	}
	if err := s.relay.LeaveHost(ctx, LeaveRequest{Caller: c, PlayerHash: actsFor(c), Host: host, Proof: proof}); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

func actsFor(c Caller) PlayerHash {
	if c.Server {
		return PlayerHash{}
	}
	return HashPlayer(c.Tenant, c.Player)
}
