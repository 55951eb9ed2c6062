package state

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// holdEnv makes the test binary a process that holds the directory it names.
const holdEnv = "STATE_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		hold(dir)
		return
	}
	os.Exit(m.Run())
}

// hold opens the directory, says what came of it, and keeps it until its
// standard input ends.
func hold(dir string) {
	d, err := Open(dir, slog.New(slog.DiscardHandler))
	fmt.Printf("%v\n", err)
	bufio.NewReader(os.Stdin).ReadByte()
	if err == nil {
		d.Close()
	}
}

// other is a second process that was asked to hold dir. It returns what the
// process says, and what ends it.
func other(t *testing.T, dir string) (said string, end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the other process: %v", err)
		}
	}
}
