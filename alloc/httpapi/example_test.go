package httpapi_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
)

// A program serves the API with the limits that a public server needs. The relay is a fake without
// room; a program passes its engine.Server.
func Example() {
	relay := alloctest.NewRelay()
	relay.Fail(alloc.ErrFull)
	service, err := alloc.NewService(alloc.ServiceConfig{
		Relay:   relay,
		Store:   alloc.NewMemoryStore(),
		Regions: []alloc.Region{{ID: "home", Description: "Under the desk"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := httpapi.New(httpapi.Config{
		Service: service,
		Tokens: []httpapi.Token{{
			Secret: "0123456789abcdef", Project: "game", Environment: "live", Server: true,
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := httpapi.NewServer(handler)
	defer server.Close()
	go server.Serve(httpapi.LimitListener(listener, httpapi.ConnLimits{})) // ServeTLS on the internet

	client := api.Client{BaseURL: "http://" + listener.Addr().String(), Token: "0123456789abcdef"}
	regions, err := client.Regions(context.Background())
	fmt.Println(regions[0].ID, err)
	_, err = client.Allocate(context.Background(), api.AllocateRequest{MaxConnections: 4})
	fmt.Println(err)
	// Output:
	// home <nil>
	// allocate: api: Service Unavailable: no relay has room (status 503, code 15010)
}
