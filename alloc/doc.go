// Package alloc implements the Allocations service: it reserves allocations on a relay,
// issues join codes, and resolves a join code to its host.
//
//	service, err := alloc.NewService(alloc.ServiceConfig{
//		Relay: relay, Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "home"}},
//	})
//	host, err := service.Allocate(ctx, caller, 8, "")       // for the host
//	code, err := service.JoinCode(ctx, caller, host.ID)     // to show to the players
//	joiner, err := service.Join(ctx, otherCaller, code)     // for each player
//
// The relay is an *engine.Server, or a [Relay] of the program's own. The package opens no socket
// and starts no goroutine, and the service has nothing to close. Package httpapi serves it over
// HTTP; api has the JSON types and a client. Package relay puts all of it together, and
// docs/embedding.md says how a program does so by itself.
package alloc
