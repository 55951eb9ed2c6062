package state

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	if dir := testkit.ChildTask(); dir != "" {
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
