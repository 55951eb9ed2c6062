// Package api contains the JSON bodies and the problem codes of the Relay Allocations
// API, and a small HTTP client.
//
//	client := api.Client{BaseURL: "https://relay.example.org:7777", Token: token}
//	host, err := client.Allocate(ctx, api.AllocateRequest{MaxConnections: 8})
//	code, err := client.JoinCode(ctx, host.AllocationID)
//	joiner, err := client.Join(ctx, code)
//	endpoint, ok := joiner.Endpoint("udp")
//
// The server (alloc/httpapi), the client library (client) and the load generator (bench)
// share it, so it imports the standard library only.
//
// The names and the required members of every body are those that Unity's Relay SDK 1.x
// parses; it throws an exception when a required member is missing. Unknown members are
// ignored in both directions, so that either side may be newer.
package api
