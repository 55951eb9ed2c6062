package dtls

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(killEnv); path != "" {
		killChild(path)
	}
	goleak.VerifyTestMain(m)
}
