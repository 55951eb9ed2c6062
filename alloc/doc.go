// Package alloc implements the Allocations service: it reserves allocations on a relay,
// issues join codes, and resolves a join code to its host.
//
//	service, err := alloc.NewService(alloc.ServiceConfig{
//		Relay:   relay, // *engine.Server
//		Store:   alloc.NewMemoryStore(), // join codes
//		Regions: []alloc.Region{{ID: "home"}},
//	})
//	host, err := service.Allocate(ctx, caller, 8, "")       // for the host
//	code, err := service.JoinCode(ctx, caller, host.ID)     // to show to the players
//	joiner, err := service.Join(ctx, otherCaller, code)     // for each player
//	http.Handle("/v1/", handler)                            // or over HTTP: package httpapi
//
// The package opens no socket and starts no goroutine. The HTTP handlers are in
// httpapi, the JSON types and an HTTP client in api.
//
// # What an embedding program must do
//
// Only the relay sees allocations bound and ended. A program constructs, in this order:
//
//	engine.New      with an Identity; keep it for the next start
//	NewService      with the relay and a Store, such as NewMemoryStore
//	httpapi.New     with the service and its callers' tokens, to serve HTTP
//
// and then runs the relay. Package relay does all of it. NewService lets the service observe the
// relay. For a relay that cannot be observed the program calls Service.OnBind, without which a
// reservation counts against MaxOutstanding until BindTimeout is over, and Service.OnEnd, without
// which a join code stays in the store until Join learns from the relay that its host has ended.
// The service has nothing to close.
//
// A relay that keeps its state over a restart also has join codes: set
// ServiceConfig.KeepCode to engine.Server.KeepCode, and pass each of
// engine.Server.KeptCodes to [Store].MoveCode before Server.Run.
//
// A tested program is in docs/embedding.md, and the terms are in docs/glossary.md.
package alloc
