package deploy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// root is the root of the repository, which is the build context.
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

// run returns the output and the exit code of the binary.
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

// dev starts ferry dev and returns the URLs of its API and its admin listener.
func dev(t *testing.T) (api, admin string) {
	t.Helper()
	cmd := exec.Command(binary, "dev", "--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	p := ferrytest.Start(t, cmd)
	t.Cleanup(p.Stop)
	return p.API, p.Admin
}

// get returns the body and the status of a URL.
func get(t *testing.T, url string) (body string, status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (body string, status int) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), resp.StatusCode
}

// read returns the content of a file in this directory.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// strict decodes one YAML document and rejects unknown keys.
func strict(text []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}

// tool returns the path of a program, or skips the test.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed; this test of its file formats is skipped, other tests check the rest", name)
	}
	return path
}
