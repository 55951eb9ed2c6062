package engine_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
)

// A program of its own embeds a relay and reserves a host's allocation and one
// for a joiner; how those reach the players is its own affair.
func Example() {
	id, err := engine.NewIdentity()
	if err != nil {
		log.Fatal(err)
	}
	srv, err := engine.New(engine.Config{Region: "cellar"}, id)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- srv.Run(ctx) }()
	<-srv.Ready()

	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	host, err := srv.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: tenant}, MaxConnections: 4})
	if err != nil {
		log.Fatal(err)
	}
	joiner, err := srv.ReserveJoiner(ctx, alloc.JoinerRequest{Caller: alloc.Caller{Tenant: tenant}, Host: host.ID})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(host.Region, len(host.ConnectionData), host.Key, joiner.Endpoints[0].ConnectionType)
	fmt.Println(srv.Stats().Allocations, "allocations")
	cancel()
	fmt.Println(<-done)
	// Output:
	// cellar 255 [redacted] udp
	// 2 allocations
	// <nil>
}
