package bench

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(4) // The parallel ones wait for what the relay loses, each with a thread that spins.
	goleak.VerifyTestMain(m)
}
