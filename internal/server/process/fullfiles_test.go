package process

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// fullFile takes so many bytes more.
type fullFile struct {
	bytes.Buffer
	space int
}

func (f *fullFile) Write(p []byte) (int, error) {
	n := min(len(p), f.space)
	f.space -= n
	f.Buffer.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func (f *fullFile) Close() error { return nil }

// TestAuditOnFullDisk: a line that did not fit whole damages no later one, and both states
// are logged.
func TestAuditOnFullDisk(t *testing.T) {
	t.Parallel()
	log, disk := new(testkit.LogBuffer), &fullFile{space: 12}
	f := &auditFile{name: "audit", log: slog.New(slog.NewTextHandler(log, nil)), file: disk}
	for _, line := range []string{"{first}\n", "{second}\n", "{third}\n"} {
		_, _ = f.Write([]byte(line))
	}
	disk.space = 1000
	for _, line := range []string{"{fourth}\n", "{fifth}\n"} {
		if n, err := f.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("wrote %d: %v", n, err)
		}
	}
	if got := disk.String(); got != "{first}\n{sec\n{fourth}\n{fifth}\n" {
		t.Errorf("%q", got)
	}
	if text := log.String(); strings.Count(text, "level=ERROR") != 1 || strings.Count(text, "are recorded again") != 1 {
		t.Error(text)
	}
}

// TestUsageOnFullDisk: usage that could not be written is at the next attempt, and both
// states are logged.
func TestUsageOnFullDisk(t *testing.T) {
	t.Parallel()
	log := new(testkit.LogBuffer)
	k := newUsageKeeper(filepath.Join(t.TempDir(), "full", "usage"), time.Now(), nil, slog.New(slog.NewTextHandler(log, nil)))
	k.last = []engine.Usage{{Tenant: 7, Bytes: 5}}
	k.write()
	k.write()
	if !k.hasFailed() {
		t.Error("it was written")
	}
	if err := os.Mkdir(filepath.Dir(k.file), 0o700); err != nil {
		t.Fatal(err)
	}
	k.write()
	if _, err := os.Stat(k.file); err != nil || k.hasFailed() {
		t.Error(err)
	}
	if text := log.String(); strings.Count(text, "level=ERROR") != 1 || strings.Count(text, "is kept again") != 1 {
		t.Error(text)
	}
}
