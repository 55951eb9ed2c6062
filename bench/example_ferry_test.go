package bench_test

import (
	"context"
	"errors"
	"log"
	"net/http/httptest"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
)

// startFerry starts a relay with an Allocations service over HTTP in this process,
// for examples, and returns the URL of the service.
func startFerry(ctx context.Context) (url string, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
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
		Unlimited: true, // one player reserves all allocations
	})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := httpapi.New(httpapi.Config{Service: service, Tokens: []httpapi.Token{
		{Secret: "secret-0123456789", Project: "game", Environment: "test", Player: "bench"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	server := httptest.NewServer(handler)
	return server.URL, func() {
		server.Close()
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			log.Fatal(err)
		}
	}
}
