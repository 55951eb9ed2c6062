package relaytest

import (
	"context"
	"log"
	"net"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/relay"
)

// StartService runs a relay with an Allocations service for callers with those tokens
// in this process, for runnable examples, which have no testing.TB. It returns the URL of the
// service and a function that stops both. An error ends the process.
func StartService(tokens ...httpapi.Token) (url string, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	r, err := relay.New(relay.Config{
		Listener: listener, API: httpapi.Config{Tokens: tokens},
		Service: alloc.ServiceConfig{MaxOutstanding: 65536}, // On a slow machine many players wait for their BIND.
		Engine:  engine.Config{Region: "home", HostMigration: engine.HostMigration{Window: 30 * time.Second}},
	})
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(context.Background()); err != nil {
			log.Fatal(err)
		}
	})
	return "http://" + listener.Addr().String(), func() {
		_ = r.Close()
		running.Wait()
	}
}
