package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const root = "../.."

// binary is built once for all tests. The suite of scripts/release builds as the container
// file says, which compiles the standard library again.
var binary string

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	var err error
	if binary, err = ferrytest.Build(); err != nil {
		panic(err)
	}
	ferrytest.Main(m)
}

func run(t *testing.T, args ...string) (text string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{} // without settings in the environment
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func strict(text []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}

func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed; this test of its file formats is skipped, other tests check the rest", name)
	}
	return path
}
