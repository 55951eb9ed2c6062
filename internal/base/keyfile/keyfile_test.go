package keyfile_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := keyfile.Write(name, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

// TestWrite: the content is there, for its owner alone, and nothing is left of
// a writer that was cut short.
func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "key.pem")
	if err := os.WriteFile(name, []byte("old and longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name+keyfile.Suffix, []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, name, "new")
	got, err := os.ReadFile(name)
	if err != nil || string(got) != "new" {
		t.Fatalf("%q, %v", got, err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files are left, want 1", len(entries))
	}
}

// TestWriteFails: a file that cannot be put in its place leaves nothing behind.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "key.pem")
	if err := os.MkdirAll(filepath.Join(name, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := keyfile.Write(name, []byte("new")); err == nil {
		t.Error("a directory was replaced by a file")
	}
	if err := keyfile.Write(filepath.Join(dir, "missing", "key.pem"), nil); err == nil {
		t.Error("a file was written into no directory")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files are left, want 1", len(entries))
	}
}

// TestWatch: each change is seen once.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	w := keyfile.NewWatch(a, b)
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"the other file appears", func() { write(t, b, "1") }},
		{"a file of the same size", func() { write(t, a, "2") }},
		{"a file goes", func() {
			if err := os.Remove(b); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		if w.Changed() {
			t.Errorf("before %q: a change, and there was none", step.what)
		}
		step.do()
		if !w.Changed() {
			t.Errorf("%s: not seen", step.what)
		}
	}
	if w.Changed() {
		t.Error("at the end: a change, and there was none")
	}
}
