package engine_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
)

// A program runs a relay with the Allocations service over HTTP. The service observes
// the relay; see package alloc.
func Example_allocationsService() {
	id, err := engine.NewIdentity() // keep it, so that matches survive a restart
	if err != nil {
		log.Fatal(err)
	}

	relay, err := engine.New(engine.Config{Region: "home"}, id)
	if err != nil {
		log.Fatal(err)
	}
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := httpapi.New(httpapi.Config{
		Service: service,
		Tokens: []httpapi.Token{
			{Secret: "alice-0123456789", Project: "game", Environment: "live", Player: "alice"},
			{Secret: "bob-0123456789abc", Project: "game", Environment: "live", Player: "bob"},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- relay.Run(ctx) }()
	<-relay.Ready()
	server := httptest.NewServer(handler) // a public server uses TLS and httpapi.NewServer

	alice := api.Client{BaseURL: server.URL, Token: "alice-0123456789"}
	host, err := alice.Allocate(ctx, api.AllocateRequest{MaxConnections: 8})
	if err != nil {
		log.Fatal(err)
	}
	code, err := alice.JoinCode(ctx, host.AllocationID)
	if err != nil {
		log.Fatal(err)
	}
	bob := api.Client{BaseURL: server.URL, Token: "bob-0123456789abc"}
	joiner, err := bob.Join(ctx, code)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(code), "symbols,", joiner.ServerEndpoints[0].ConnectionType, "in", joiner.Region)

	server.Close()
	cancel()
	fmt.Println(<-done)
	// Output:
	// 6 symbols, udp in home
	// <nil>
}
