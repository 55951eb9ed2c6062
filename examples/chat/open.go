package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// open connects to the host with a code, or becomes a host and prints its code. It returns the type
// of the RPC that carries a line.
func open(ctx context.Context, relay *api.Client, code string, out io.Writer) (d *netcode.Driver, say netcode.RPCType[[]byte], err error) {
	rpcs := new(netcode.RPCRegistry)
	if say, err = netcode.RegisterRPC(rpcs, "say", netcode.Raw()); err != nil {
		return nil, say, err
	}
	if code == "" {
		d, err = host(ctx, relay, rpcs, out)
	} else {
		d, err = join(ctx, relay, code, rpcs)
	}
	return d, say, err
}

func host(ctx context.Context, relay *api.Client, rpcs *netcode.RPCRegistry, out io.Writer) (*netcode.Driver, error) {
	ticket, err := client.Reserve(ctx, relay, 8, "")
	if err != nil {
		return nil, err
	}
	conn, _, err := link.OpenRelay(ctx, client.Config{Ticket: ticket})
	if err != nil {
		return nil, err
	}
	d, err := netcode.NewServer(netcode.Config{Link: conn, RPCs: rpcs})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	code, err := relay.JoinCode(ctx, ticket.ID.String())
	if err == nil {
		err = d.Listen(address.Addr{})
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	fmt.Fprintln(out, "join code:", code)
	return d, nil
}

func join(ctx context.Context, relay *api.Client, code string, rpcs *netcode.RPCRegistry) (*netcode.Driver, error) {
	ticket, err := client.Redeem(ctx, relay, code)
	if err != nil {
		return nil, err
	}
	conn, host, err := link.OpenRelay(ctx, client.Config{Ticket: ticket})
	if err != nil {
		return nil, err
	}
	d, err := netcode.NewClient(netcode.Config{Link: conn, RPCs: rpcs})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if _, err := d.Connect(host); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// next returns the next line that was typed, or none. It is cut to what fits into an RPC.
func next(lines <-chan string) []string {
	select {
	case line := <-lines:
		return []string{line[:min(len(line), 1000)]}
	default:
		return nil
	}
}

// printable removes control characters, since what other players write goes to a terminal.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, line)
}
