package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestUpgrade: a new process that cannot start leaves the old one serving and says why; others
// take over, one after the other, with new settings, while a match goes on, its join code leads
// to it, and the service manager is told.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	manager := filepath.Join(t.TempDir(), "notify")
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: manager, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	state := t.TempDir()
	file := settings(t, "state_dir: "+state, "recover_for: 0s", "region: eu")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	put := func(was, is string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Replace(string(good), was, is, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := operateIn(t, []string{"NOTIFY_SOCKET=" + manager}, "serve", "-c", file, "--workers", "1")
	o.token = "a-secret-of-the-tests"
	hears(t, told, "READY=1")
	// holder returns the process that has the state directory, 0 while that changes.
	holder := func() int {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(state, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		id, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return id
	}
	t.Cleanup(func() {
		if id := holder(); id > 1 {
			_ = syscall.Kill(id, syscall.SIGKILL)
		}
	})
	m := o.match()
	for _, c := range []struct{ was, is, why string }{
		{"region: eu", "max_seats: many", `max_seats: "many" is not a whole number`},
		{"udp: 127.0.0.1:0", "udp: 127.0.0.2:0", "it listens on 127.0.0.1:"},
		{"region: eu", "websocket: false", "it has players by ws"},
		{state, t.TempDir(), "is not the lock of the process before this one"},
	} {
		put(c.was, c.is)
		o.refuses("ctl upgrade", c.why)
		m.exchange(t, "after "+c.is)
	}
	if holder() != o.Process.Pid {
		t.Errorf("the state directory belongs to process %d, not %d", holder(), o.Process.Pid)
	}

	put("region: eu", "region: us")
	var done operator.UpgradeResult
	out, _ := o.ctl(exitOK, "ctl", "upgrade", "-o", "json")
	if err := json.Unmarshal([]byte(out), &done); err != nil || done.Process == o.Process.Pid {
		t.Errorf("it answers %s", out)
	}
	hears(t, told, "READY=1", "MAINPID="+strconv.Itoa(done.Process))
	m.exchange(t, "after an upgrade")
	o.wants("ctl nodes", "us")
	o.wants("ctl allocations", m.hostID, m.playerID, m.code)
	testkit.Eventually(t, "the new process knows what was before", func() bool {
		var y operator.Why
		out, _ := o.ctl(exitOK, "ctl", "why", m.playerID, "-o", "json")
		return json.Unmarshal([]byte(out), &y) == nil && strings.HasPrefix(y.Because, "it plays: bound, and linked") &&
			y.Player != "" && len(y.Events) > 0 && y.Events[0].What == "reserved"
	})
	if _, err := o.caller().Join(t.Context(), m.code); err != nil {
		t.Errorf("the join code: %v", err)
	}
	if err := syscall.Kill(done.Process, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	last := 0
	testkit.Eventually(t, "another process has the state directory", func() bool {
		last = holder()
		return last > 1 && last != done.Process
	})
	hears(t, told, "READY=1", "MAINPID="+strconv.Itoa(last))
	m.exchange(t, "after another one")
	testkit.Eventually(t, "the new process knows what was sent before, to the byte", func() bool {
		var u operator.PlayersUsage
		out, _ := o.ctl(exitOK, "ctl", "usage", "--players", "--project", "game", "-o", "json")
		return json.Unmarshal([]byte(out), &u) == nil && len(u.Players) == 1 && u.Players[0].Bytes == m.sentBytes &&
			u.Players[0].Datagrams == m.sent
	})
	if err := syscall.Kill(last, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := o.exit(); code != exitOK { // of the first process, whose output the last one has
		t.Errorf("it ended with %d: %s", code, o.stderr.String())
	}
}

// TestUpgradeKeepsRules: bans, limits of players and webhooks go on in the next process, whose events have the names of
// what the one before reserved. A relay that drains is not upgraded.
func TestUpgradeKeepsRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret, heard := filepath.Join(dir, "secret"), make(chan string, 100)
	if err := os.WriteFile(secret, []byte("hush-hush-0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e struct{ Type, Allocation, Player string }
		_ = json.NewDecoder(r.Body).Decode(&e)
		heard <- e.Type + " " + e.Allocation + " " + e.Player
	}))
	defer program.Close()
	file := settings(t, "state_dir: "+filepath.Join(dir, "state"), "recover_for: 0s", "player_hosts: 1", "webhook_url: "+program.URL,
		"webhook_secret_file: "+secret)
	o := operate(t, "serve", "-c", file, "--workers", "1")
	o.token = "a-secret-of-the-tests"
	allocate := func(player string) (ticket client.Ticket, status int) {
		a, err := o.caller().Allocate(t.Context(), api.AllocateRequest{MaxConnections: 2, Player: player})
		if p, ok := errors.AsType[*api.Problem](err); ok {
			return ticket, p.Status
		}
		if err == nil {
			ticket, err = client.TicketFrom(a)
		}
		if err != nil {
			t.Fatal(err)
		}
		return ticket, http.StatusCreated
	}
	ticket, _ := allocate("bob")
	bob := session(t, ticket)
	o.wants("ctl ban --yes --player ann --project game --environment test --reason cheats", "banned until")
	var done operator.UpgradeResult
	out, _ := o.ctl(exitOK, "ctl", "upgrade", "-o", "json")
	if err := json.Unmarshal([]byte(out), &done); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(done.Process, syscall.SIGKILL) })
	o.wants("ctl bans", "ann", "cheats")
	for player, want := range map[string]int{"ann": http.StatusForbidden, "bob": http.StatusTooManyRequests, "carl": http.StatusCreated} {
		if _, status := allocate(player); status != want {
			t.Errorf("after the upgrade a host of %s: %d, want %d", player, status, want)
		}
	}
	_ = bob.Close()
	for want := "ended " + ticket.ID.String() + " bob"; ; {
		select {
		case e := <-heard:
			if e == want {
				o.wants("ctl drain --deadline 1h", "draining")
				o.refuses("ctl upgrade", "the relay drains")
				return
			}
		case <-time.After(patience):
			t.Fatalf("the program does not hear %q", want)
		}
	}
}

// TestUpgradeInContainer: where the end of the process ends its container, no other one takes over, and a match goes on.
func TestUpgradeInContainer(t *testing.T) {
	t.Parallel()
	testkit.NeedRoot(t, "a namespace of processes")
	unshare := testkit.Program(t, "unshare", "util-linux")
	for _, c := range []struct{ line, why string }{
		{"exec %s", "this is process 1 of its container"},
		{"%s; exit $?", "sh, process 1 of the container, has started this process"},
	} {
		line := fmt.Sprintf(c.line, binary+" serve -c "+settings(t, "state_dir: "+t.TempDir(), "recover_for: 0s")+" --workers 1")
		o := operateProcess(start(t, exec.Command(unshare, "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", line), nil))
		o.token = "a-secret-of-the-tests"
		m := o.match()
		o.refuses("ctl upgrade", c.why)
		m.exchange(t, "after "+c.line)
	}
}

// TestUpgradeKeptConnections: clients that keep their connections to the API, and repeat no call, lose none over an upgrade.
func TestUpgradeKeptConnections(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	o := operate(t, "serve", "-c", settings(t, "state_dir: "+state, "recover_for: 0s"), "--workers", "1")
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var calls atomic.Int64
	for range 8 {
		all.Go(func() {
			c := &http.Client{Transport: new(http.Transport), Timeout: patience}
			defer c.CloseIdleConnections()
			for ctx.Err() == nil {
				body := struct{ io.Reader }{strings.NewReader("{}")} // which the client cannot send again
				r, err := c.Post(o.http+"/v1/allocate", "application/json", body)
				if err != nil {
					t.Errorf("a call was lost: %v", err)
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				r.Body.Close()
				calls.Add(1)
			}
		})
	}
	for range 3 {
		var done operator.UpgradeResult
		out, _ := o.ctl(exitOK, "ctl", "upgrade", "-o", "json")
		if err := json.Unmarshal([]byte(out), &done); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(done.Process, syscall.SIGKILL) })
		before := calls.Load()
		testkit.Eventually(t, "the new process answers calls", func() bool { return t.Failed() || calls.Load() > before+100 })
	}
	stop()
	all.Wait()
}

func hears(t *testing.T, told *net.UnixConn, all ...string) {
	t.Helper()
	if err := told.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for wants := slices.Clone(all); len(wants) > 0; {
		var b [200]byte
		n, err := told.Read(b[:])
		if err != nil {
			t.Fatalf("the service manager was not told %q: %v", wants, err)
		}
		wants = slices.DeleteFunc(wants, func(s string) bool { return s == string(b[:n]) })
	}
}

func (m *match) exchange(t *testing.T, text string) {
	t.Helper()
	for _, way := range [][2]*client.Peer{{m.toHost, m.toPlayer}, {m.toPlayer, m.toHost}} {
		if _, err := way[0].Write([]byte(text)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		m.sent, m.sentBytes = m.sent+1, m.sentBytes+uint64(proto.RelayOverhead+len(text))
		if err := way[1].SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		for b := make([]byte, 100); ; {
			n, err := way[1].Read(b)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if string(b[:n]) == text {
				break
			}
		}
	}
}
