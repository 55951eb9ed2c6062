package alloc_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
)

// A host gets an allocation and a join code, and a player joins with the code. The code
// ends with its host. The relay is a fake; a program passes its engine.Server.
func ExampleService() {
	ctx := context.Background()
	relay := alloctest.NewRelay()
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay:   relay,
		Store:   alloc.NewMemoryStore(),
		Regions: []alloc.Region{{ID: "home", Description: "Under the desk"}},
		Rand:    bytes.NewReader([]byte{4, 5, 6, 7, 8, 9}), // nil in a program
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	host := alloc.Caller{Tenant: tenant, Player: "alice"}
	joiner := alloc.Caller{Tenant: tenant, Player: "bob"}

	reservation, _ := service.Allocate(ctx, host, 8, "")
	code, _ := service.JoinCode(ctx, host, reservation.ID)
	fmt.Println(reservation.Region, code)

	_, err = service.Join(ctx, joiner, "bcdfgh")
	fmt.Println("joined:", err)

	relay.End(context.Background(), reservation.ID)
	_, err = service.Join(ctx, joiner, code)
	fmt.Println(err)
	// Output:
	// home BCDFGH
	// joined: <nil>
	// look up the host: alloc: join code not found
}
