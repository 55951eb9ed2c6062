//go:build browser

package blackbox

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

type exampleHost struct {
	*clienttest.Program
	page string // with the join code
}

func startExampleHost(t *testing.T, api, page string) exampleHost {
	t.Helper()
	program := filepath.Join(t.TempDir(), "host")
	if out, err := exec.Command("go", "build", "-o", program, "../../../examples/browser/host").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, "-api", api, "-page", page)
	cmd.Stderr = os.Stderr
	h := clienttest.Start(t, cmd)
	return exampleHost{h, h.Expect("open")}
}

func (h exampleHost) joins(browser *chromium, name string) consoleTab {
	h.T.Helper()
	p := consoleTab{browser.open(h.page, "document.getElementById('go')?.disabled === false")}
	p.enter("name", name)
	p.press("Join")
	return p
}

// TestBrowserExample: two pages of examples/browser join the match of its host by the code, see
// each other, chat, leave, and learn that the host has left.
func TestBrowserExample(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "chromium", "chromium")
	f := dev(t, unhurried...)
	dir := t.TempDir()
	bundle(t, "../../../examples/browser/main.ts", filepath.Join(dir, "main.js"))
	html, err := os.ReadFile("../../../examples/browser/index.html")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "index.html"), html, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(srv.Close)
	browser := startChromium(t)
	h := startExampleHost(t, f.api, srv.URL+"/")

	ana := h.joins(browser, "ana")
	ana.shows("host\nana")
	ana.readable("chat")
	ben := h.joins(browser, "<b>ben</b>")
	ben.shows("host\n<b>ben</b>\nana")
	ana.shows("host\n<b>ben</b>\nana")
	ana.enter("text", "hello")
	ana.press("Send")
	ana.shows("ana: hello")
	ben.shows("ana: hello")
	if got := h.Line(); got != "ana: hello" {
		t.Errorf("the host prints %q", got)
	}
	h.Do("welcome")
	ana.shows("host: welcome")
	ben.shows("host: welcome")

	if err := ben.evaluate("location.assign('about:blank')", nil); err != nil {
		t.Fatal(err)
	}
	ana.shows("host\nana")
	if err := errors.Join(h.Process.Signal(os.Interrupt), h.Wait()); err != nil {
		t.Errorf("the host ended with %v", err)
	}
	ana.shows("the host has left")

	ana.enter("code", "6789BC")
	ana.press("Join")
	ana.shows("Not Found: join code not found")
}
