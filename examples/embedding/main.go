// Command embedding is an HTTP server with pages of its own that is a relay as well: the Relay
// Allocations API is at /v1/ of the same server, and the datagrams go to a UDP port.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
)

func main() {
	web := flag.String("http", "127.0.0.1:8080", "TCP address of the web server")
	udp := flag.String("udp", "127.0.0.1:8081", "UDP address of the relay, which the players reach")
	flag.Parse()
	addr, err := netip.ParseAddrPort(*udp)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *web)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.Printf("http://%s is a web server and a relay", listener.Addr())
	if err := serve(ctx, listener, addr, os.Getenv("FERRY_TOKEN")); err != nil {
		log.Fatal(err)
	}
	log.Print("stopped")
}

// serve runs the web server and the relay until ctx ends, or until one of them fails.
func serve(ctx context.Context, listener net.Listener, udp netip.AddrPort, token string) error {
	relay, api, err := newRelay(udp, token)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "players here now: %d\n", relay.Stats().Bound)
	})
	server := httpapi.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(httpapi.RoutePath(r), "/v1/") { // Unity's SDK may call //v1/, which a ServeMux redirects.
			api.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))

	serving, fail := context.WithCancelCause(ctx)
	relaying, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { fail(relay.Run(relaying)) })
	select { // Before, calls of the API would fail.
	case <-relay.Ready():
	case <-serving.Done():
	}
	running.Go(func() { fail(server.Serve(httpapi.LimitListener(listener, httpapi.ConnLimits{}))) })
	<-serving.Done()
	if err = nil; ctx.Err() == nil {
		err = context.Cause(serving)
	}
	// First the calls of the API end, which the relay answers, then the relay.
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if shutdown := server.Shutdown(soon); shutdown != nil {
		err = errors.Join(err, shutdown, server.Close())
	}
	stopRelay()
	running.Wait()
	return err
}

// newRelay returns a relay and the handler of its API.
func newRelay(udp netip.AddrPort, token string) (*engine.Server, http.Handler, error) {
	// A program that keeps both, and sets engine.Recovery.StateFile, lets matches go on after a restart.
	master, err := alloc.NewMasterKey(nil)
	if err != nil {
		return nil, nil, err
	}
	id, err := alloc.NewRelayID()
	if err != nil {
		return nil, nil, err
	}
	sealer, err := alloc.NewSealer(alloc.SealerConfig{Master: master, Relay: id})
	if err != nil {
		return nil, nil, err
	}
	var service *alloc.Service // The relay calls no hook before Run.
	relay, err := engine.New(engine.Config{
		Listen: []netip.AddrPort{udp}, // also what players are told; behind a NAT, set Advertise
		Hooks: engine.Hooks{
			OnBind: func(e engine.BindEvent) { service.OnBind(e.ID) },
			OnEnd:  func(e engine.EndEvent) { service.OnEnd(e.ID) },
		},
	}, sealer)
	if err != nil {
		return nil, nil, err
	}
	service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: relay, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "default"}},
	})
	if err != nil {
		return nil, nil, errors.Join(err, relay.Close())
	}
	cfg := httpapi.Config{Service: service}
	if cfg.Anonymous = token == ""; !cfg.Anonymous {
		cfg.Tokens = []httpapi.Token{{Secret: token, Project: "game", Environment: "live", Kind: httpapi.KindServer}}
	}
	handler, err := httpapi.New(cfg)
	if err != nil {
		return nil, nil, errors.Join(err, relay.Close())
	}
	return relay, handler, nil
}
