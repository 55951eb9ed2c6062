package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
)

// Tokens of the players on the relay that startRelay starts.
const (
	hostToken   = "alice-0123456789"
	joinerToken = "bob-0123456789abc"
)

// startRelay runs a relay with its Allocations service in this process, and returns
// the URL of the service and a function that stops both. Package engine has the same
// in its example.
func startRelay() (url string, stop func()) {
	master, err := alloc.NewMasterKey(nil)
	if err != nil {
		log.Fatal(err)
	}
	id, err := alloc.NewRelayID()
	if err != nil {
		log.Fatal(err)
	}
	sealer, err := alloc.NewSealer(alloc.SealerConfig{Master: master, Relay: id})
	if err != nil {
		log.Fatal(err)
	}
	var service *alloc.Service // the relay calls no hook before Run
	relay, err := engine.New(engine.Config{Region: "home", Hooks: engine.Hooks{
		OnBind: func(e engine.BindEvent) { service.OnBind(e.ID) },
		OnEnd:  func(e engine.EndEvent) { service.OnEnd(e.ID) },
	}}, sealer)
	if err != nil {
		log.Fatal(err)
	}
	service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := httpapi.New(httpapi.Config{Service: service, Tokens: []httpapi.Token{
		{Secret: hostToken, Project: "game", Environment: "live", Player: "alice"},
		{Secret: joinerToken, Project: "game", Environment: "live", Player: "bob"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := relay.Run(ctx); err != nil {
			log.Print(err)
		}
	})
	server := httptest.NewServer(handler)
	return server.URL, func() {
		server.Close()
		cancel()
		running.Wait()
	}
}

// A host reserves a match and passes its join code to a player, which joins. The two
// exchange one datagram each, through a relay in the same process.
func Example() {
	url, stop := startRelay()
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
