package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client/netcode"
)

// open connects to the host with a code, or becomes a host and prints its code. It returns the type
// of the RPC that carries a line.
func open(ctx context.Context, relay *api.Client, code string, out io.Writer) (d *netcode.Driver, say netcode.RPCType[[]byte], err error) {
	rpcs := new(netcode.RPCRegistry)
	if say, err = netcode.RegisterRPC(rpcs, "say", netcode.Raw()); err != nil {
		return nil, say, err
	}
	cfg := netcode.Config{RPCs: rpcs}
	if code != "" {
		d, _, err = netcode.JoinRelay(ctx, relay, code, cfg)
		return d, say, err
	}
	if d, code, err = netcode.HostRelay(ctx, relay, 8, cfg); err == nil {
		fmt.Fprintln(out, "join code:", code)
	}
	return d, say, err
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
