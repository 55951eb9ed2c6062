package storetest_test

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/ferryrelay/ferry/internal/test/storetest"
)

var seeds = flag.Uint64("migration.seeds", 100, "matches of TestMigration")

// TestMigration: the code follows the hosts of a match, whatever fails, for many seeds.
func TestMigration(t *testing.T) {
	t.Parallel()
	for seed := range *seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				storetest.RunMigration(t, storetest.NewMemoryDirectory(nil), seed, 1)
			})
		})
	}
}
