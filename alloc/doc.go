// Package alloc implements the Allocations service: it reserves allocations on a
// relay, issues join codes, and resolves a join code to its host. It reads none of the
// sealed connection data that a relay issues.
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
// The service keeps counts and join codes of allocations, and only the relay sees
// them bound and ended. A program constructs, in this order:
//
//	engine.New      with an Identity; keep it for the next start
//	NewService      with the relay and a Store, such as NewMemoryStore
//	httpapi.New     with the service and its callers' tokens, to serve HTTP
//
// and then runs the relay. Package relay does all of it. NewService registers the service
// with an [ObservableRelay], which engine.Server is. For any other relay the program calls
//
//	Service.OnBind  when an allocation was bound: the reservation was used
//	Service.OnEnd   when one has ended: its join code is removed
//
// Without OnBind a reservation counts against MaxOutstanding until BindTimeout is over.
// Without OnEnd a join code stays in the store after its host has ended, until Join
// learns of it from the relay. The service has nothing to close.
//
// A relay that keeps its state over a restart also has join codes: set
// ServiceConfig.KeepCode to engine.Server.KeepCode, and pass each of
// engine.Server.KeptCodes to [MemoryStore.Restore] before Server.Run.
//
// A tested program is in docs/embedding.md.
//
// # Terms
//
//	allocation  one player's right to use the relay, with an id and a key
//	host        an allocation to which others may be linked
//	joiner      an allocation that may be linked to the host of its match
//	match       a host and its joiners, identified by the host's id
//	link        permission for a joiner and a host to send to each other
//	binding     the endpoint from which the allocation's client sends
//	reserved    in the table, not bound yet
//	ended       removed for good; its slot may still wait for reuse
//
//	connection data  255 sealed bytes that state what was reserved
//	ticket           the connection data with which a joiner connects to its host
//	epoch            the time, by default a week, for which a sealing key is in use
package alloc
