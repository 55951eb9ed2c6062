package sock

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

func mappable() bool {
	return slices.Contains([]string{"linux", "darwin", "dragonfly", "freebsd", "netbsd", "openbsd"}, runtime.GOOS)
}

func newFile(t *testing.T, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "mapped"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMapFile(t *testing.T) {
	f := newFile(t, 10_000)
	if _, err := f.WriteAt([]byte("old"), 5000); err != nil {
		t.Fatal(err)
	}
	mem, unmap, err := MapFile(f, 9_000)
	if !mappable() {
		if !errors.Is(err, errors.ErrUnsupported) || mem != nil || unmap != nil {
			t.Errorf("%d bytes, %v", len(mem), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(mem) != 9_000 || !bytes.Equal(mem[5000:5004], []byte("old\x00")) {
		t.Errorf("%d bytes, %q", len(mem), mem[5000:5004])
	}
	copy(mem[8990:], "0123456789")
	got := make([]byte, 12)
	if _, err := f.ReadAt(got, 8989); err != nil || string(got) != "\x000123456789\x00" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if _, err := f.WriteAt([]byte("new"), 0); err != nil || string(mem[:3]) != "new" {
		t.Errorf("the mapping has %q, %v", mem[:3], err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	mem[1] = 'o'
	for range 2 {
		if err := unmap(); err != nil {
			t.Errorf("unmap: %v", err)
		}
	}
	if b, err := os.ReadFile(f.Name()); err != nil || len(b) != 10_000 || string(b[:3]) != "now" {
		t.Errorf("afterwards %d bytes, %v", len(b), err)
	}
}

func TestMapFileTwice(t *testing.T) {
	if !mappable() {
		t.Skipf("%s has no mappings here", runtime.GOOS)
	}
	f := newFile(t, 100)
	a, unmapA, err := MapFile(f, 100)
	if err != nil {
		t.Fatal(err)
	}
	b, unmapB, err := MapFile(f, 50)
	if err != nil {
		t.Fatal(err)
	}
	if a[49] = 7; b[49] != 7 {
		t.Error("they are not")
	}
	if err := unmapA(); err != nil {
		t.Error(err)
	}
	if b[49] != 7 {
		t.Error("the second ends with the first")
	}
	if err := unmapB(); err != nil {
		t.Error(err)
	}
}

func TestMapFileErrors(t *testing.T) {
	if !mappable() {
		t.Skipf("%s has no mappings here", runtime.GOOS)
	}
	f := newFile(t, 100)
	readOnly, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = readOnly.Close() })
	closed := newFile(t, 100)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		f    *os.File
		size int
		want error // nil: any
	}{
		{"nothing", f, 0, ErrConfig},
		{"negative", f, -1, ErrConfig},
		{"longer than the file", f, 101, io.ErrUnexpectedEOF},
		{"read only", readOnly, 100, nil},
		{"closed", closed, 100, os.ErrClosed},
	} {
		mem, unmap, err := MapFile(tt.f, tt.size)
		if err == nil || mem != nil || unmap != nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: %d bytes, %v, want %v", tt.name, len(mem), err, tt.want)
		}
	}
}
