package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"go.uber.org/goleak"
)

const (
	roleVariable = "UPGRADE_TEST_ROLE"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" && os.Getenv(Variable) != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func play(role string) error {
	if role == "ends" {
		return nil
	}
	h, err := Inherit()
	if err != nil {
		return err
	}
	switch role {
	case "hangs":
		time.Sleep(time.Hour)
	case "refuses":
		return h.Fail(errors.New("the settings are invalid"))
	}
	if os.Getenv(Variable) != "" {
		return errors.New("the variable is still there")
	}
	text, err := io.ReadAll(h.Take("a file"))
	if err != nil {
		return err
	}
	if h.Take("a file") != nil || h.Take("another") != nil {
		return errors.New("a file is there twice")
	}
	l, err := h.Listener("a port", "127.0.0.1:0")
	if err != nil || l == nil {
		return fmt.Errorf("listener %v: %w", l, err)
	}
	if err := h.Prepared(); err != nil {
		return err
	}
	from, rest, err := h.Receive(context.Background())
	if err != nil {
		return err
	}
	state, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	if role == "dies" {
		return errors.New("it dies")
	}
	if err := h.Serving(); err != nil {
		return err
	}
	c, err := l.Accept() // of a client that came when the old process did not accept any more
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = fmt.Fprintf(c, "%s|%s|%s|%s", h.Offer, text, state, rest)
	return err
}

func startAs(t *testing.T, role string, within time.Duration) (*Child, net.Listener, error) {
	t.Helper()
	t.Setenv(roleVariable, role)
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("its content"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	port, err := sock.Dup(l.(*net.TCPListener), "port")
	if err != nil {
		t.Fatal(err)
	}
	files := new(Files)
	files.Add("a file", file)
	files.Add("a port", port)
	defer files.Close()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	path, err := Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // The umask may let a group write it.
		t.Fatal(err)
	}
	s, err := Start(ctx, path, files, []byte(`"the offer"`), 10)
	return s, l, err
}

// TestUpgrade: a new process gets files, a port with its queue of connections, the offer and the
// state.
func TestUpgrade(t *testing.T) {
	s, l, err := startAs(t, "serves", testkit.WaitLimit)
	if err != nil {
		t.Fatal(err)
	}
	if s.Process() == os.Getpid() {
		t.Error("the new process is this one")
	}
	address := l.Addr().String()
	l.Close()
	c, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	state := strings.Repeat("more than room", 1000)
	for _, part := range []string{state[:100], state[100:]} {
		if _, err := io.WriteString(s, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Give([]byte("the rest")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(testkit.WaitLimit))
	if got, err := io.ReadAll(c); err != nil || string(got) != `"the offer"|its content|`+state+"|the rest" {
		t.Errorf("the new process got %q, %v", got, err)
	}
}

// TestFailures: each failure of a new process is an error here that says why, and leaves no
// process.
func TestFailures(t *testing.T) {
	for role, want := range map[string]string{
		"ends": "it has ended", "refuses": "the settings are invalid",
	} {
		if _, _, err := startAs(t, role, testkit.WaitLimit); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", role, err)
		}
	}
	if _, _, err := startAs(t, "hangs", 100*time.Millisecond); !errors.Is(err, ErrFailed) ||
		!strings.Contains(err.Error(), "it was not prepared within ") {
		t.Errorf("hangs: %v", err)
	}
	if _, err := Start(t.Context(), "/nonexistent", new(Files), nil, 0); !errors.Is(err, ErrFailed) {
		t.Errorf("no program: %v", err)
	}
	s, _, err := startAs(t, "dies", testkit.WaitLimit)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Give([]byte("the rest")); err == nil {
		t.Error("the end of a process that has the state is no error")
	}
	_, _ = s.cmd.Process.Wait()
	s, _, err = startAs(t, "serves", testkit.WaitLimit)
	if err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if s.cmd.ProcessState == nil || s.cmd.ProcessState.Success() {
		t.Errorf("a process that is not wanted any more ended with %v", s.cmd.ProcessState)
	}
}

// TestParents: a process whose end would end the one that replaces it is not replaced, and others are.
func TestParents(t *testing.T) {
	for name, c := range map[string]struct {
		tree string // parent, group and command line of this process and those before it
		env  string
		want string // empty: it is replaced
	}{
		"process 1":                     {"1: 0 1 /ferry", "", "process 1 of its container"},
		"process 1, with a socket":      {"1: 0 1 /ferry", "NOTIFY_SOCKET=/run/n", "process 1 of its container"},
		"docker --init":                 {"7: 1 7 /ferry; 1: 0 1 /sbin/docker-init", "", "docker-init, process 1"},
		"tini and podman's notify":      {"7: 1 7 /ferry; 1: 0 1 /run/podman-init", "NOTIFY_SOCKET=/run/n", "podman-init, process 1"},
		"an entrypoint without exec":    {"7: 1 1 ferry; 1: 0 1 /bin/sh /entrypoint.sh", "", "sh, process 1"},
		"the same below tini":           {"8: 7 7 ferry; 7: 1 7 /bin/bash ./entrypoint.sh; 1: 0 1 /tini", "", "tini, process 1"},
		"a pod's shared processes":      {"12: 0 12 /ferry; 1: 0 1 /pause", "", "a container runtime"},
		"a shared namespace":            {"12: 9 12 /ferry; 9: 1 9 /bin/containerd-shim-runc-v2; 1: 0 1 /sbin/init", "", "a container runtime"},
		"the same of podman":            {"12: 9 12 /ferry; 9: 1 9 /usr/bin/conmon; 1: 0 1 /sbin/init", "", "a container runtime"},
		"a unit":                        {"912: 1 912 ferry; 1: 0 1 /sbin/init", "SYSTEMD_EXEC_PID=912 NOTIFY_SOCKET=/run/n", ""},
		"a unit in a container":         {"30: 1 30 ferry; 1: 0 1 /usr/lib/systemd/systemd", "SYSTEMD_EXEC_PID=30 NOTIFY_SOCKET=/run/n", ""},
		"a unit that sees nothing else": {"912: 1 912 ferry", "NOTIFY_SOCKET=/run/n", ""},
		"a unit without notify":         {"912: 1 912 ferry; 1: 0 1 /sbin/init", "SYSTEMD_EXEC_PID=912", "Type=notify"},
		"its shell":                     {"13: 12 12 ferry; 12: 1 12 /bin/sh -c ferry; 1: 0 1 /sbin/init", "SYSTEMD_EXEC_PID=12", "Type=notify"},
		"a terminal of a unit":          {"95: 94 95 ferry; 94: 90 94 bash; 90: 1 90 terminal; 1: 0 1 /sbin/init", "SYSTEMD_EXEC_PID=90", ""},
		"a person in a container":       {"9: 1 9 ferry; 1: 0 1 bash", "", ""},
		"a person by ssh":               {"95: 94 95 ferry; 94: 90 94 -bash; 90: 1 90 sshd: a; 1: 0 1 /sbin/init", "", ""},
		"a supervisor in a container":   {"9: 7 9 ferry; 7: 1 7 runsv; 1: 0 1 /sbin/runit", "", ""},
		"another program":               {"9: 7 1 ferry; 7: 1 1 /work/lab.test; 1: 0 1 /bin/sh", "", ""},
		"nothing is seen":               {"9: 1 9 ferry", "", ""},
		"not even this process":         {"9: x", "", ""},
	} {
		proc, self := make(fstest.MapFS), 0
		for line := range strings.SplitSeq(c.tree, "; ") {
			id, rest, _ := strings.Cut(line, ": ")
			parent, rest, _ := strings.Cut(rest, " ")
			group, command, _ := strings.Cut(rest, " ")
			if self == 0 {
				self, _ = strconv.Atoi(id)
			}
			proc[id+"/stat"] = &fstest.MapFile{Data: []byte(id + " (a (name) S) S " + parent + " " + group + " 1 0\n")}
			proc[id+"/cmdline"] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(command, " ", "\x00") + "\x00")}
		}
		env := make(map[string]string)
		for _, e := range strings.Fields(c.env) {
			key, value, _ := strings.Cut(e, "=")
			env[key] = value
		}
		err := checkParents(proc, self, func(name string) string { return env[name] })
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestOwner: a program that others may have written is not started.
func TestOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode  os.FileMode
		owner int
		want  string
	}{
		{0o755, os.Geteuid(), "it has ended"}, {0o775, os.Geteuid(), "others may write"}, {0o757, os.Geteuid(), "others may write"},
		{0o755, 65534, "belongs to user 65534"}, {0o777, 65534, "belongs to user 65534"},
	} {
		if c.owner != os.Geteuid() && os.Geteuid() != 0 {
			testkit.NeedRoot(t, "a file of another user")
		}
		if err := errors.Join(os.Chown(path, c.owner, -1), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		if _, err := Start(t.Context(), path, new(Files), []byte("{}"), 0); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("mode %o of user %d: %v, want %q", c.mode, c.owner, err, c.want)
		}
	}
}

// TestNoParent: a process that no upgrade started has nothing to take over.
func TestNoParent(t *testing.T) {
	if h, err := Inherit(); h != nil || err != nil {
		t.Errorf("%v, %v", h, err)
	}
	var none *Parent
	if none.Take("a file") != nil {
		t.Error("there is a file without a parent")
	}
}
