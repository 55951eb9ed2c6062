package netcode

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/proto"
)

// HostRelay reserves an allocation for a number of players, opens it, and returns a server that
// listens there with the join code of the match. Config.Link must be nil. The caller closes the
// driver, which closes the allocation. The session is link.Session(d.Link()).
//
// Errors wrap ErrConfig, or are those of client.Reserve, link.OpenRelay and api.Client.JoinCode.
func HostRelay(ctx context.Context, relay *api.Client, players int, cfg Config) (d *Driver, joinCode string, err error) {
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = players
	}
	if err := cfg.withDefaults().checkRelay(); err != nil {
		return nil, "", err
	}
	ticket, err := client.Reserve(ctx, relay, players, "")
	if err != nil {
		return nil, "", err
	}
	if d, _, err = openTicket(ctx, ticket, cfg); err != nil {
		return nil, "", err
	}
	if joinCode, err = relay.JoinCode(ctx, ticket.ID.String()); err != nil {
		return nil, "", errors.Join(err, d.Close())
	}
	return d, joinCode, nil
}

// JoinRelay joins the match with a join code, and returns a client that connects to its host with
// that connection; StateConnecting is an event of the first Update. Config.Link must be nil. The
// caller closes the driver.
//
// Errors wrap ErrConfig, or are those of client.Redeem and link.OpenRelay.
func JoinRelay(ctx context.Context, relay *api.Client, joinCode string, cfg Config) (*Driver, Conn, error) {
	if err := cfg.withDefaults().checkRelay(); err != nil {
		return nil, Conn{}, err
	}
	ticket, err := client.Redeem(ctx, relay, joinCode)
	if err != nil {
		return nil, Conn{}, err
	}
	return openTicket(ctx, ticket, cfg)
}

// MigrateRelay goes on with the match of a client of JoinRelay whose host has left: each of its players calls it,
// when it is disconnected. If this player is the new host, it returns a server that listens, with the same join code,
// and a zero Conn; otherwise a client that connects to the new host, as JoinRelay does. The old driver is closed then,
// and not used meanwhile; after an error the caller closes it. Config.Link must be nil. The server must permit
// migrations (setting host_migration of Ferry).
//
// It waits until a player is the host, or ctx ends: a host that crashed counts as one that has left after some seconds.
//
// Errors wrap ErrConfig, or are those of client.Migrate, such as client.ErrMatchOver, and link.OpenRelay.
func MigrateRelay(ctx context.Context, relay *api.Client, joinCode string, old *Driver, cfg Config) (*Driver, Conn, error) {
	if err := cfg.withDefaults().checkRelay(); err != nil {
		return nil, Conn{}, err
	}
	if len(old.ticket.HostConnectionData) == 0 {
		return nil, Conn{}, fmt.Errorf("%w: the driver is no player's of a relay", ErrConfig)
	}
	m := client.MigrationConfig{API: relay, Code: joinCode, Ticket: old.ticket}
	for {
		ticket, err := client.Migrate(ctx, m)
		if err != nil {
			return nil, Conn{}, err
		}
		d, conn, err := openTicket(ctx, ticket, cfg)
		if isTaken(err) {
			continue
		}
		if err == nil {
			err = old.Close()
		}
		return d, conn, err
	}
}

// isTaken reports whether the turn has passed, or the new host has left as well.
func isTaken(err error) bool {
	var ended client.EndedError
	var refused client.RefusedError
	return errors.As(err, &ended) || errors.As(err, &refused) && refused.Code == proto.ErrorNotFound
}

func (c Config) checkRelay() error {
	if c.Link != nil {
		return fmt.Errorf("%w: the relay is the link", ErrConfig)
	}
	return c.check()
}

// openTicket opens a server that listens, or a client that connects.
func openTicket(ctx context.Context, t client.Ticket, cfg Config) (d *Driver, conn Conn, err error) {
	open, isHost := NewClient, len(t.HostConnectionData) == 0
	if isHost {
		open = NewServer
	}
	l, host, err := link.OpenRelay(ctx, client.Config{Ticket: t, Logger: cfg.Logger})
	if err != nil {
		return nil, Conn{}, err
	}
	cfg.Link = l
	if d, err = open(cfg); err != nil {
		return nil, Conn{}, errors.Join(err, l.Close())
	}
	d.ticket = t
	if isHost {
		err = d.Listen(address.Addr{})
	} else {
		conn, err = d.Connect(host)
	}
	if err != nil {
		return nil, Conn{}, errors.Join(err, d.Close())
	}
	return d, conn, nil
}
