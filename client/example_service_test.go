package client_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

// Tokens of the players for the Allocations service.
const (
	hostToken   = "alice-0123456789"
	joinerToken = "bob-0123456789abc"
)

// A host reserves a match and passes its join code to a player, which joins. The two
// exchange one datagram each, through a relay in the same process.
func Example() {
	url, stop := relaytest.StartService( // the URL of any Allocations API
		httpapi.Token{Secret: hostToken, Project: "game", Environment: "live", Player: "alice"},
		httpapi.Token{Secret: joinerToken, Project: "game", Environment: "live", Player: "bob"},
	)
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()

	alice := &api.Client{BaseURL: url, Token: hostToken}
	ticket, err := client.Reserve(ctx, alice, 4, "")
	if err != nil {
		log.Fatal(err)
	}
	host, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	running.Go(func() { _ = host.Run(ctx) })
	if err := host.Bind(ctx); err != nil {
		log.Fatal(err)
	}
	code, err := alice.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		log.Fatal(err)
	}

	bob := &api.Client{BaseURL: url, Token: joinerToken}
	ticket, err = client.Redeem(ctx, bob, code)
	if err != nil {
		log.Fatal(err)
	}
	joiner, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		log.Fatal(err)
	}
	defer joiner.Close()
	running.Go(func() { _ = joiner.Run(ctx) })
	toHost, err := joiner.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := toHost.Write([]byte("hello")); err != nil {
		log.Fatal(err)
	}

	toJoiner, err := host.Accept(ctx) // returns with the first datagram of the joiner
	if err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 1500)
	n, err := toJoiner.Read(buf)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("host received %q\n", buf[:n])
	if _, err := toJoiner.Write([]byte("welcome")); err != nil {
		log.Fatal(err)
	}
	if n, err = toHost.Read(buf); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("joiner received %q\n", buf[:n])
	// Output:
	// host received "hello"
	// joiner received "welcome"
}
