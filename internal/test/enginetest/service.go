package enginetest

import (
	"context"
	"log"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
)

// StartService runs a relay with an Allocations service for callers with those tokens
// in this process, for examples, which have no testing.TB. It returns the URL of the
// service and a function that stops both. An error ends the process.
func StartService(tokens ...httpapi.Token) (url string, stop func()) {
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
	codes := alloc.NewMemoryStore()
	relay, err := engine.New(engine.Config{Region: "home", HostMigration: engine.HostMigration{Window: 30 * time.Second}, Hooks: engine.Hooks{
		OnBind: func(e engine.BindEvent) { service.OnBind(e.ID) },
		OnEnd: func(e engine.EndEvent) {
			if e.Migration {
				service.OnBind(e.ID)
			} else {
				service.OnEnd(e.ID)
			}
		},
		OnMigrate: func(e engine.MigrateEvent) {
			_, _ = codes.MoveCode(context.Background(), e.Tenant, e.Code, e.Host, e.NewHost)
		},
		OnMigrationEnd: func(e engine.MigrationEndEvent) { service.OnEnd(e.Host) },
	}}, sealer)
	if err != nil {
		log.Fatal(err)
	}
	service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: codes, Regions: []alloc.Region{{ID: "home"}},
		Unlimited: true, HostMigration: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := httpapi.New(httpapi.Config{Service: service, Tokens: tokens})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := relay.Run(ctx); err != nil {
			log.Fatal(err)
		}
	})
	<-relay.Ready()
	server := httptest.NewServer(handler)
	return server.URL, func() {
		server.Close()
		cancel()
		running.Wait()
	}
}
