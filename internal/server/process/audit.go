package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/console"
)

// audit is the record of what operators do.
type audit struct {
	lines *console.Log
	file  *auditFile // nil: the settings name none
}

func openAudit(o *Options) (*audit, error) {
	if o.Config.AuditFile == "" {
		return &audit{lines: console.NewLog(slog.NewJSONHandler(io.Discard, nil))}, nil
	}
	f, err := openAuditFile(o.Config.AuditFile, o.Logger)
	if err != nil {
		return nil, err
	}
	return &audit{console.NewLog(slog.NewJSONHandler(f, nil)), f}, nil
}

// auditFile appends to a file. Any goroutine may use it.
type auditFile struct {
	name string
	log  *slog.Logger

	mu     sync.Mutex // guards what follows
	file   io.WriteCloser
	failed time.Time // when a failure was last logged
	torn   bool      // the last line is not whole
	lost   bool      // a line is, and no later one was written
}

func openAuditFile(name string, log *slog.Logger) (*auditFile, error) {
	f := &auditFile{name: name, log: log}
	return f, f.reopen()
}

// reopen opens the file again, which another program may have moved. If it fails, lines go on
// to the file that was open.
func (f *auditFile) reopen() error {
	file, err := os.OpenFile(f.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("audit_file: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		f.file.Close()
	}
	f.file = file
	return nil
}

func (f *auditFile) prepare(*config.Config, []string) (apply, error) {
	return func(_ context.Context, done *operator.ReloadResult) error {
		if err := f.reopen(); err != nil {
			done.Notes = append(done.Notes, err.Error()+": lines go on to the file that was open")
		}
		return nil
	}, nil
}

const auditFailureEvery = time.Minute

func (f *auditFile) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := line
	if f.torn {
		text = append([]byte("\n"), line...)
	}
	n, err := f.file.Write(text)
	f.torn = err != nil && (n > 0 || f.torn)
	if err == nil && f.lost {
		f.log.Info("changes that operators make are recorded again", "audit_file", f.name)
	}
	f.lost = err != nil
	n = max(n-len(text)+len(line), 0)
	if err != nil && time.Since(f.failed) >= auditFailureEvery {
		f.failed = time.Now()
		f.log.Error("a change that an operator made is not recorded", "audit_file", f.name, "error", err)
	}
	return n, err
}

func (f *auditFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}
