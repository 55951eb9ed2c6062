//go:build browser

package blackbox

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// exampleHost is a running examples/browser/host.
type exampleHost struct {
	t     *testing.T
	page  string      // with the join code
	input *os.File    // its standard input
	lines chan string // its standard output, after the first line
	stop  func()
}

func startExampleHost(t *testing.T, api, page string) exampleHost {
	t.Helper()
	program := filepath.Join(t.TempDir(), "host")
	if out, err := exec.Command("go", "build", "-o", program, "../../../examples/browser/host").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	input, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	cmd := exec.Command(program, "-api", api, "-page", page)
	cmd.Stdin, cmd.Stderr = input, os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = input.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // It has ended, if all is well.
	h := exampleHost{t: t, input: ours, lines: make(chan string, 100)}
	ended := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			h.lines <- lines.Text()
		}
		ended <- cmd.Wait()
	}()
	h.stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			t.Errorf("the host ended with %v", err)
		}
	}
	var ok bool
	if h.page, ok = strings.CutPrefix(h.next(), "open "); !ok {
		t.Fatal("the host does not print the page")
	}
	return h
}

// next returns the next line of the host.
func (h exampleHost) next() string {
	h.t.Helper()
	select {
	case line := <-h.lines:
		return line
	case <-time.After(testkit.WaitLimit):
		h.t.Fatal("the host prints nothing")
	}
	return ""
}

// joins opens the page of a player and joins.
func (h exampleHost) joins(browser *chromium, name string) consoleTab {
	h.t.Helper()
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
	if got := h.next(); got != "ana: hello" {
		t.Errorf("the host prints %q", got)
	}
	if _, err := fmt.Fprintln(h.input, "welcome"); err != nil {
		t.Fatal(err)
	}
	ana.shows("host: welcome")
	ben.shows("host: welcome")

	if err := ben.evaluate("location.assign('about:blank')", nil); err != nil {
		t.Fatal(err)
	}
	ana.shows("host\nana")
	h.stop()
	ana.shows("the host has left")

	ana.enter("code", "6789BC")
	ana.press("Join")
	ana.shows("Not Found: join code not found")
}
