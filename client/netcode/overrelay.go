package netcode

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
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
	if d, _, err = openRelay(ctx, ticket, cfg, NewServer); err != nil {
		return nil, "", err
	}
	if joinCode, err = relay.JoinCode(ctx, ticket.ID.String()); err == nil {
		err = d.Listen(address.Addr{})
	}
	if err != nil {
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
	d, host, err := openRelay(ctx, ticket, cfg, NewClient)
	if err != nil {
		return nil, Conn{}, err
	}
	conn, err := d.Connect(host)
	if err != nil {
		return nil, Conn{}, errors.Join(err, d.Close())
	}
	return d, conn, nil
}

func (c Config) checkRelay() error {
	if c.Link != nil {
		return fmt.Errorf("%w: the relay is the link", ErrConfig)
	}
	return c.check()
}

func openRelay(ctx context.Context, t client.Ticket, cfg Config, open func(Config) (*Driver, error)) (*Driver, address.Addr, error) {
	l, host, err := link.OpenRelay(ctx, client.Config{Ticket: t, Logger: cfg.Logger})
	if err != nil {
		return nil, address.Addr{}, err
	}
	cfg.Link = l
	d, err := open(cfg)
	if err != nil {
		return nil, address.Addr{}, errors.Join(err, l.Close())
	}
	return d, host, nil
}
