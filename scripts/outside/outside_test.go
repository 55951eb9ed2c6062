package outside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// goMod is the go.mod of a module that uses this tree.
const goMod = `module example.org/game

go 1.26.0

require github.com/ferryrelay/ferry v0.0.0

replace github.com/ferryrelay/ferry => %s
`

// TestOutside: a module outside of this tree has a transport, a store and a placer of its own and
// embeds a relay. It needs no network: the module cache has what this tree needs.
func TestOutside(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", fmt.Appendf(nil, goMod, root))
	write("go.sum", sums)
	files, err := filepath.Glob("testdata/game/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	testkit.Input(t, files...)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Base(name), text)
	}
	for _, args := range [][]string{{"vet", "./..."}, {"test", "-count=1", "./..."}} {
		cmd := exec.CommandContext(t.Context(), testkit.Program(t, "go", "golang"), args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOPROXY=off", "GOTOOLCHAIN=local", "PWD="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
}
