package placement_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/storetest"
)

// noRelays is a registry without relays.
type noRelays struct{ placement.Registry }

func (noRelays) Nodes(context.Context) ([]placement.Seen, error) { return nil, nil }

type noDialer struct{ placement.Dialer }

// TestRegionalCodes: the stores of several regions together are a store of join codes.
func TestRegionalCodes(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) alloc.Store {
		var members []placement.Member
		for i, symbol := range []string{"6", "D", "L", "R"} { // Those with which the codes of the tests begin.
			f := placement.New(placement.Config{Registry: noRelays{}, Directory: storetest.NewMemoryDirectory(nil), Dialer: noDialer{}})
			members = append(members, placement.Member{Fleet: f, Region: fmt.Sprint("region", i), Symbol: symbol})
		}
		return placement.NewRegional(members...).Codes()
	})
}
