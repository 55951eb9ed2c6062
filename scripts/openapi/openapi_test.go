// Package openapi tests that clients generated from alloc/httpapi/openapi.yaml compile and
// work. It is a module of its own, so that Ferry does not depend on the generator.
package openapi

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/scripts/openapi/generated"
)

var rewrite = flag.Bool("rewrite", false, "write the generated client instead of comparing it")

const (
	document = "../../alloc/httpapi/openapi.yaml"
	client   = "generated/client.go"
)

// TestGenerated: the client in the repository is the one that oapi-codegen generates.
func TestGenerated(t *testing.T) {
	out := filepath.Join(t.TempDir(), "client.go")
	if *rewrite {
		out = client
	}
	if text, err := exec.Command("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "generated", "-o", out, document).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(client); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what oapi-codegen generates (%v): go -C scripts/openapi test -run TestGenerated -rewrite", client, err)
	}
}

// TestClient: the generated client plays a match's calls against a running relay.
func TestClient(t *testing.T) {
	c, err := generated.NewClientWithResponses(dev(t))
	if err != nil {
		t.Fatal(err)
	}
	regions, err := c.ListRegionsWithResponse(t.Context())
	if err != nil || regions.JSON200 == nil || len(regions.JSON200.Data.Regions) != 1 {
		t.Fatalf("regions: %v %s", err, regions.Body)
	}
	host, err := c.AllocateWithResponse(t.Context(), generated.AllocateRequest{MaxConnections: 3})
	if err != nil || host.JSON201 == nil || len(host.JSON201.Data.Allocation.Key) != 64 {
		t.Fatalf("allocate: %v %s", err, host.Body)
	}
	id := host.JSON201.Data.Allocation.AllocationId
	code, err := c.CreateJoinCodeWithResponse(t.Context(), generated.JoinCodeRequest{AllocationId: id})
	if err != nil || code.JSON201 == nil {
		t.Fatalf("join code: %v %s", err, code.Body)
	}
	joined, err := c.JoinWithResponse(t.Context(), generated.JoinRequest{JoinCode: code.JSON201.Data.JoinCode})
	if err != nil || joined.JSON200 == nil || joined.JSON200.Data.Allocation.AllocationId == id {
		t.Fatalf("join: %v %s", err, joined.Body)
	}
	if no, err := c.JoinWithResponse(t.Context(), generated.JoinRequest{JoinCode: "6789BC"}); err != nil || no.StatusCode() != http.StatusNotFound || no.ApplicationproblemJSON404 == nil {
		t.Errorf("an unknown code: %v %s", err, no.Body)
	}
}

// dev starts ferry dev and returns the URL of its API.
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
