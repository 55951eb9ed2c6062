//go:build browser

package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// chromium is a browser, driven by the DevTools protocol.
type chromium struct {
	t    *testing.T
	conn *ws.Conn

	mu      sync.Mutex // guards what follows
	last    int
	answers map[int]chan devTools
}

type devTools struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// unhurried are flags with which no allocation ends while the machine is too slow for a
// browser that has to bind or to send in time.
var unhurried = []string{"--bind-timeout", "5m", "--idle-timeout", "5m"}

func startChromium(t *testing.T, flags ...string) *chromium {
	t.Helper()
	profile := t.TempDir()
	cmd := exec.Command(testkit.Program(t, "chromium", "chromium"), append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-background-timer-throttling", "--disable-renderer-backgrounding",
		"--remote-debugging-port=0", "--user-data-dir=" + profile,
	}, append(flags, "about:blank")...)...)
	log := new(text)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	c := &chromium{t: t, answers: make(map[int]chan devTools)}
	t.Cleanup(func() {
		if c.conn != nil {
			_ = c.conn.Write(context.Background(), ws.MessageText, []byte(`{"id":1000000,"method":"Browser.close"}`))
		}
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("Chromium said:\n%s", log)
		}
	})
	var port, path string
	testkit.Eventually(t, "Chromium tells its port", func() bool {
		b, _ := os.ReadFile(filepath.Join(profile, "DevToolsActivePort")) // Not there yet.
		var whole bool
		port, path, whole = strings.Cut(strings.TrimSpace(string(b)), "\n")
		return whole
	})
	conn, _, err := ws.Dial(t.Context(), "ws://127.0.0.1:"+port+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(16 << 20)
	c.conn = conn
	go c.receive()
	return c
}

func (c *chromium) receive() {
	for {
		_, b, err := c.conn.Read(context.Background())
		if err != nil {
			return
		}
		var m devTools
		if json.Unmarshal(b, &m) != nil || m.ID == 0 {
			continue // An event.
		}
		c.mu.Lock()
		answer := c.answers[m.ID]
		delete(c.answers, m.ID)
		c.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	}
}

func (c *chromium) call(session, method string, params, result any) {
	c.t.Helper()
	if err := c.try(session, method, params, result); err != nil {
		c.t.Fatal(err)
	}
}

// try is call that returns the error of the browser.
func (c *chromium) try(session, method string, params, result any) error {
	c.t.Helper()
	answer := make(chan devTools, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.answers[id] = answer
	c.mu.Unlock()
	b, err := json.Marshal(devTools{ID: id, Session: session, Method: method, Params: params})
	if err == nil {
		err = c.conn.Write(c.t.Context(), ws.MessageText, b)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			c.t.Fatalf("%s: %v in %s", method, err, m.Result)
		}
	case <-time.After(time.Minute):
		c.t.Fatalf("%s %v: no answer", method, params)
	}
	return nil
}

type tab struct {
	*chromium
	session string
}

// open opens a page and waits until an expression of its script is true.
func (c *chromium) open(url, ready string) tab {
	c.t.Helper()
	var target struct{ TargetID string }
	c.call("", "Target.createTarget", map[string]any{"url": url}, &target)
	var session struct{ SessionID string }
	c.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p := tab{c, session.SessionID}
	testkit.Eventually(c.t, "the page is there", func() bool {
		var there bool
		return p.evaluate(ready, &there) == nil && there
	})
	return p
}

// evaluate waits for the value of an expression, and returns what it throws.
func (p tab) evaluate(expression string, into any) error {
	p.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := p.try(p.session, "Runtime.evaluate", map[string]any{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	}, &got)
	if err != nil {
		return err // The page is being replaced by another one, for example.
	}
	if e := got.ExceptionDetails; e != nil {
		return fmt.Errorf("the page: %s %s", e.Text, e.Exception.Description)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(got.Result.Value, into)
}

func (p tab) do(into any, function string, args ...any) {
	p.t.Helper()
	if err := p.evaluate(expression(p.t, function, args...), into); err != nil {
		p.t.Fatalf("%s: %v", function, err)
	}
}

func expression(t *testing.T, function string, args ...any) string {
	t.Helper()
	list := make([]string, len(args))
	for i, a := range args {
		b, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		list[i] = string(b)
	}
	return function + "(" + strings.Join(list, ", ") + ")"
}
