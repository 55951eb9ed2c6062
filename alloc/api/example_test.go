package api_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

// A host reserves an allocation and gets its code; a player joins with the code.
func ExampleClient() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := api.Client{BaseURL: "https://relay.example.org:7777", Token: "0123456789abcdef"}
	host, err := client.Allocate(ctx, api.AllocateRequest{MaxConnections: 8})
	if err != nil {
		log.Fatal(err)
	}
	code, err := client.JoinCode(ctx, host.AllocationID)
	if err != nil {
		log.Fatal(err)
	}
	joiner, err := client.Join(ctx, code)
	if err != nil {
		log.Fatal(err)
	}
	if endpoint, ok := joiner.Endpoint("udp"); ok {
		fmt.Println("connect to", endpoint.Host, endpoint.Port)
	}
}

// Every error answer is a Problem, whose code identifies it.
func ExampleProblem() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "5")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"title":"Service Unavailable","status":503,"code":15010,"detail":"no relay has room"}`)
	}))
	defer server.Close()

	client := api.Client{BaseURL: server.URL}
	_, err := client.Join(context.Background(), "6789BC")
	var problem *api.Problem
	if errors.As(err, &problem) && problem.Code == api.CodeNoSuitableRelay {
		fmt.Println(problem.Detail+", wait", problem.RetryAfter)
	}
	// Output:
	// no relay has room, wait 5s
}
