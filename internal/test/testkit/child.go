package testkit

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
)

// Crash tests are called TestCrash…. Each does the same: work until a named point, a crash there, the
// start of what comes after, and what must hold then. A crash is made in one of three ways:
//
//	a process is killed
//	  engine/internal/statefile   TestCrashKilled       writers of a state file, by [Child.Crash]
//	  engine/dtls                 TestCrashKilled       users of sessions, by [Child.Crash]
//	  internal/test/blackbox      TestCrash             ferry serve: match, join code, what has ended
//	                              TestCrashClients      both generations of clients over UDP
//	                              TestCrashDTLS         DTLS sessions, with pion
//	                              TestCrashOpenSSL      DTLS sessions, with openssl, twice
//	a run ends without its last step
//	  engine/internal/statefile   TestCrashTwice        the file is closed without its end
//	  engine/dtls                 TestCrashPoints       between any two operations of sessions
//	  engine                      TestRestart           the state file is copied in the middle of a run
//	                              TestCrashInMigration  of the model: candidates before and after their BIND
//	a second step is taken away
//	  internal/fleet/redisstore   TestCrashBetweenSteps the second write to the store
//	  internal/fleet/placement    TestCrashInMove       the announcement of a new host
//	  internal/server/process     TestCrashInMove       the same, with relay and API
//
// In the laboratory (scripts/lab) TestRecover… kill ferry under load, with each transport and kind of client.

// childVariable says what a child is to do.
const childVariable = "FERRY_TEST_CHILD"

// ChildTask returns what this process is to do as the child of a test, "" if it is none. TestMain calls it.
func ChildTask() string { return os.Getenv(childVariable) }

// ChildCommand returns the command of a child with a task, which [ChildTask] returns there.
func ChildCommand(task string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"="+task)
	return cmd
}

// Child is another process of a test's own program.
type Child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// StartChild starts a child. It is killed at the end of the test, if it is still there.
func StartChild(t testing.TB, task string, args ...string) *Child {
	t.Helper()
	c := &Child{Cmd: ChildCommand(task, args...)}
	c.Stderr = os.Stderr
	var err error
	if c.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

// Line returns the next line that the child prints.
func (c *Child) Line(t testing.TB) string {
	t.Helper()
	if !c.out.Scan() {
		t.Fatalf("the child has ended: %v", c.Wait())
	}
	return c.out.Text()
}

// Crash kills the child at a point of its work: when at holds for the n-th line, from 1. It returns all lines.
// The test fails if the child ends by itself.
func (c *Child) Crash(t testing.TB, at func(n int, line string) bool) (lines []string) {
	t.Helper()
	killed := false
	for c.out.Scan() {
		line := c.out.Text()
		lines = append(lines, line)
		if !killed && at(len(lines), line) {
			killed = true
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Wait(); err == nil || !killed {
		t.Fatalf("the child ended by itself: %v", err)
	}
	return lines
}

// Stop closes the child's standard input, and fails the test unless it ends well.
func (c *Child) Stop(t testing.TB) {
	t.Helper()
	_ = c.in.Close()
	if err := c.Wait(); err != nil {
		t.Errorf("the child ended with %v", err)
	}
}
