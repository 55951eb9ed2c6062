package helm

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"
)

// start runs ferry until the end of the test, and returns the fields of its line "ready".
func start(t *testing.T, args ...string) map[string]string {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{} // without settings in the environment
	log := new(bytes.Buffer)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("ferry %s: %v\n%s", args[0], err, log)
		}
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), "ready ")
		if !ok {
			continue
		}
		ready := map[string]string{}
		for _, field := range strings.Fields(rest) {
			key, value, _ := strings.Cut(field, "=")
			ready[key] = value
		}
		return ready
	}
	t.Fatalf("ferry %q does not become ready", args)
	return nil
}

func dev(t *testing.T) (api, admin string) {
	t.Helper()
	ready := start(t, "dev", "--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	return ready["http"], ready["admin"]
}

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

func strict(text []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	return d.Decode(into)
}

// promtool returns the path of promtool. Without it the test is skipped, or fails in CI, which
// installs it.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatal("promtool is missing (Debian: prometheus); it is not optional under CI=true")
	}
	if err != nil {
		t.Skip("NOT TESTED with promtool: it is not installed (Debian: prometheus)")
	}
	return path
}
