package bench_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/bench"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

// Twenty pairs of a host and a player send 2,000 datagrams per second through a
// relay that runs in this process.
func ExampleRun() {
	ctx := context.Background()
	url, stop := relaytest.StartService( // the URL of any Allocations API
		httpapi.Token{Secret: "secret-0123456789", Project: "game", Environment: "test", Player: "bench"},
	)
	defer stop()

	ferry, err := bench.NewDialect(bench.DialectConfig{BaseURL: url, Token: "secret-0123456789"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := bench.Run(ctx, bench.Config{
		Load: bench.Load{Matches: 20, Rate: 2000, Warmup: 50 * time.Millisecond, Duration: 200 * time.Millisecond},
	}, ferry)
	if err != nil {
		log.Fatal(err)
	}
	// result.Latency.P99, result.LossRatio and result.Server are measurements.
	fmt.Println(result.Dialect, result.Load.Shape, "with", result.Load.Endpoints, "endpoints")
	fmt.Println("arrived:", result.Delivered > 0, "measured:", result.Measured)
	// Output:
	// ferry pairs with 40 endpoints
	// arrived: true measured: 200ms
}
