package deploy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// root is the root of the repository, which is the build context.
const root = "../.."

// binary is built once for all tests. The suite of scripts/release builds as the container
// file says, which compiles the standard library again.
var binary string

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	dir, err := os.MkdirTemp("", "ferry-deploy")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "ferry")
	build := exec.Command("go", "build", "-o", binary, "./cmd/ferry")
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		fmt.Printf("%s%v\n", text, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
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
	cmd.Env = []string{}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log := new(bytes.Buffer)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("ferry dev: %v\n%s", err, log)
		}
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		word := strings.Fields(lines.Text())
		switch {
		case len(word) == 3 && word[1] == "http":
			api = "http://" + word[2]
		case len(word) == 3 && word[1] == "admin":
			admin = "http://" + word[2]
		case len(word) > 0 && word[0] == "ready" && api != "" && admin != "":
			return api, admin
		}
	}
	t.Fatal("ferry dev does not become ready")
	return "", ""
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
