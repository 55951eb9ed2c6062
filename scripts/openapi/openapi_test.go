// Package openapi tests that clients generated from alloc/httpapi/openapi.yaml compile and
// work. It is a module of its own, so that Ferry does not depend on the generator.
package openapi

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	_ "github.com/oapi-codegen/runtime" // of the generated client
)

const document = "../../alloc/httpapi/openapi.yaml"

// TestClient: the client that oapi-codegen generates compiles, and plays a match's calls
// against a running relay (testdata/client_test.go).
func TestClient(t *testing.T) {
	dir := t.TempDir()
	for from, to := range map[string]string{"go.mod": "go.mod", "go.sum": "go.sum", "testdata/client_test.go": "client_test.go"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "generated", "client.go")
	if err := os.Mkdir(filepath.Dir(out), 0o755); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "generated", "-o", out,
		document).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-mod=mod", "./...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "RELAY="+dev(t))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

func dev(t *testing.T) string {
	binary := filepath.Join(t.TempDir(), "ferry")
	build := exec.Command("go", "build", "-o", binary, "./cmd/ferry")
	build.Dir = "../.."
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "dev", "--udp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, rest, ready := strings.Cut(lines.Text(), "ready "); ready {
			for field := range strings.FieldsSeq(rest) {
				if url, ok := strings.CutPrefix(field, "http="); ok {
					return url
				}
			}
		}
	}
	t.Fatal("ferry dev is not ready")
	return ""
}
