package engine_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"sync"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/proto"
)

// codeStore is an alloc.Store in memory, for a relay and its service in one process.
type codeStore struct {
	mu    sync.Mutex // guards the following fields
	hosts map[tenantCode]proto.AllocationID
	codes map[proto.AllocationID]tenantCode
}

type tenantCode struct {
	tenant alloc.Tenant
	code   string
}

func newCodeStore() *codeStore {
	return &codeStore{hosts: make(map[tenantCode]proto.AllocationID), codes: make(map[proto.AllocationID]tenantCode)}
}

func (s *codeStore) PutCode(_ context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := tenantCode{t, code}
	_, codeTaken := s.hosts[key]
	_, hostHasCode := s.codes[host]
	if codeTaken || hostHasCode {
		return false, nil
	}
	s.hosts[key], s.codes[host] = host, key
	return true, nil
}

func (s *codeStore) HostOf(_ context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	host, ok := s.hosts[tenantCode{t, code}]
	if !ok {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	return host, nil
}

func (s *codeStore) CodeOf(_ context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, ok := s.codes[host]
	if !ok || key.tenant != t {
		return "", alloc.ErrCodeNotFound
	}
	return key.code, nil
}

func (s *codeStore) Codes(_ context.Context, t alloc.Tenant) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.hosts {
		if key.tenant == t {
			n++
		}
	}
	return n, nil
}

func (s *codeStore) Forget(host proto.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hosts, s.codes[host])
	delete(s.codes, host)
}

// A program runs a relay with the Allocations service over HTTP. The relay's hooks
// report binds and ends to the service; see package alloc.
func Example_allocationsService() {
	master, err := alloc.NewMasterKey(nil)
	if err != nil {
		log.Fatal(err)
	}
	id, err := alloc.NewRelayID() // keep both, so that matches survive a restart
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
		Relay: relay, Store: newCodeStore(), Regions: []alloc.Region{{ID: "home"}},
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
