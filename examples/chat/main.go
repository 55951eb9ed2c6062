// Command chat is a chat by join code. The host sends each line to all players, so that all see the
// same lines in the same order.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client/netcode"
)

func main() {
	url := flag.String("api", "http://127.0.0.1:7777", "URL of the Relay Allocations API; RELAY_TOKEN is its token")
	code := flag.String("join", "", "join code; without it, host a chat")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	lines := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	relay := &api.Client{BaseURL: *url, Token: os.Getenv("RELAY_TOKEN")}
	if err := chat(ctx, relay, *code, lines, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// chat joins the chat with a code, or hosts one if the code is empty, until ctx ends or the host
// leaves. It sends lines, and writes those of all to out.
func chat(ctx context.Context, relay *api.Client, code string, lines <-chan string, out io.Writer) error {
	d, say, err := open(ctx, relay, code, out)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hosting, ended := code == "", error(nil)
	err = d.Run(ctx, 30, func(time.Time, uint32) {
		var said []string // to all players by the host, to the host by a player
		for conn := range d.Conns() {
			for rpc := range conn.RPCs() {
				if hosting {
					said = append(said, fmt.Sprintf("player %d: %s", conn.NetworkID(), rpc.Payload))
				} else {
					fmt.Fprintln(out, printable(string(rpc.Payload)))
				}
			}
			if conn.State() == netcode.StateConnected && !hosting {
				said = append(said, next(lines)...)
			}
		}
		if hosting {
			for _, line := range next(lines) {
				said = append(said, "host: "+line)
			}
		}
		for _, line := range said {
			d.Broadcast(say.New([]byte(line)))
			if hosting {
				fmt.Fprintln(out, printable(line))
			}
		}
		for _, event := range d.Events() {
			if event.State == netcode.StateDisconnected && !hosting {
				ended = fmt.Errorf("the chat has ended: %v", event.Reason)
				cancel()
			}
		}
	})
	if errors.Is(err, context.Canceled) {
		return ended
	}
	return err
}
