package statefile

import (
	"errors"
	"os"
	"testing"
	"time"
)

func copyOf(t *testing.T, path string) (restore func()) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRollback: an older copy of the file is not complete, whichever change it lacks, and
// the next process has a complete file again. A copy that lacks nothing is complete.
func TestRollback(t *testing.T) {
	t.Parallel()
	r := sample(t, 40)
	for name, c := range map[string]struct {
		change func(t *testing.T, l *File)
		want   error
	}{
		"add":     {func(t *testing.T, l *File) { l.Add(&r); crash(t, l) }, ErrRolledBack},
		"binding": {func(t *testing.T, l *File) { l.SetBinding(2, 900, 1, Bound); crash(t, l) }, ErrRolledBack},
		"removal": {func(t *testing.T, l *File) { l.Remove(1); crash(t, l) }, ErrRolledBack},
		"settled": {func(t *testing.T, l *File) { l.Settle(); crash(t, l) }, ErrRolledBack},
		"closed":  {func(t *testing.T, l *File) { closed(t, l) }, ErrRolledBack},
		"nothing": {func(t *testing.T, l *File) { crash(t, l) }, nil},
	} {
		modes(t, func(t *testing.T, cfg Config) {
			l, _ := open(t, cfg)
			fill(t, l, 4)
			restore := copyOf(t, cfg.Path)
			c.change(t, l)
			restore()
			cfg.Boot++
			left := openAndCrash(t, cfg)
			if c.want == nil {
				wantComplete(t, left, 1)
			} else {
				wantIncomplete(t, left, c.want)
			}
			if len(left.Records) != 4 {
				t.Errorf("%s: %d records, want those of the copy", name, len(left.Records))
			}
			cfg.Boot++
			wantComplete(t, openAndCrash(t, cfg), 2)
		})
	}
}

// TestRollbackOfRun: a copy of an earlier run is older, even if no record changed since.
func TestRollbackOfRun(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		l, _ := open(t, cfg)
		closed(t, l)
		restore := copyOf(t, cfg.Path)
		cfg.Boot++
		l, left := open(t, cfg)
		wantComplete(t, left, 1)
		if age := time.Since(left.Closed); age < 0 || age > time.Hour {
			t.Errorf("closed %v ago", age)
		}
		closed(t, l)
		restore()
		cfg.Boot, cfg.Machine = cfg.Boot+1, "up again"
		left = openAndCrash(t, cfg)
		wantIncomplete(t, left, ErrRolledBack)
		if !left.Closed.IsZero() {
			t.Errorf("closed at %v", left.Closed)
		}
		// The counter may be ahead after a crash of the machine, which is no rollback.
		restore()
		cfg.Boot, cfg.Machine = cfg.Boot+1, "and again"
		l, _ = open(t, cfg)
		restore = copyOf(t, cfg.Path)
		l.Settle()
		crash(t, l)
		restore()
		cfg.Boot, cfg.Machine = cfg.Boot+1, "at last"
		wantIncomplete(t, openAndCrash(t, cfg), ErrMachine)
	})
}

// TestCounterLost: without its counter a file may be an older copy. The file of a version
// without a counter is complete.
func TestCounterLost(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		openAndCrash(t, cfg)
		counter := cfg.Path + counterSuffix
		for name, lose := range map[string]func() error{
			"removed": func() error { return os.Remove(counter) },
			"flipped": func() error {
				b, err := os.ReadFile(counter)
				b[counterAt] ^= 4
				return errors.Join(err, os.WriteFile(counter, b, 0o600))
			},
			"other relay": func() error {
				b, err := os.ReadFile(counter)
				b[counterRelay] ^= 4
				return errors.Join(err, os.WriteFile(counter, b, 0o600))
			},
			"other file": func() error { return os.WriteFile(counter, []byte("precious"), 0o600) },
		} {
			if err := lose(); err != nil {
				t.Fatal(err)
			}
			cfg.Boot++
			left := openAndCrash(t, cfg)
			if wantIncomplete(t, left, ErrNoCounter); t.Failed() {
				t.Fatal(name)
			}
			cfg.Boot++
			wantComplete(t, openAndCrash(t, cfg), cfg.Boot-1)
		}
		if b, err := os.ReadFile(counter + setAsideSuffix); err != nil || string(b) != "precious" {
			t.Errorf("the other file: %q, %v", b, err)
		}
		// As earlier versions left it.
		file := contents(t, cfg)
		clear(file[countAt:journalAt])
		if err := errors.Join(os.WriteFile(cfg.Path, file, 0o600), os.Remove(counter)); err != nil {
			t.Fatal(err)
		}
		cfg.Boot++
		wantComplete(t, openAndCrash(t, cfg), cfg.Boot-1)
	})
}

func TestCounterFails(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, true)
	l, reported := failing(t, cfg, 1000, true)
	if err := l.counter.source.Close(); err != nil {
		t.Fatal(err)
	}
	r := sample(t, 1)
	if l.Add(&r) != 0 || l.Storing() {
		t.Error("stored without a counter")
	}
	wantReported(t, *reported, os.ErrClosed)
	if _, err := os.Stat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	_ = l.closeFiles()
}

// TestSessionsRollback: no session is found in a copy from before the last Touch, so that
// no sequence number is used twice. The next process stores sessions again.
func TestSessionsRollback(t *testing.T) {
	t.Parallel()
	for _, unmapped := range []bool{false, true} {
		cfg := sessionsConfig(t, unmapped)
		s := openSessions(t, cfg)
		p := s.Add(sampleSession(1))
		s.SetSent(p, 1<<20)
		restore := copyOf(t, cfg.Path)
		s.SetSent(p, 5<<20)
		s.Touch() // In the same second.
		restore()
		next := openSessions(t, cfg)
		if len(next.Found()) != 0 || !errors.Is(next.Unread(), ErrRolledBack) {
			t.Errorf("found %v, %v", next.Found(), next.Unread())
		}
		next.Add(sampleSession(2))
		if err := next.Close(); err != nil {
			t.Error(err)
		}
		if got := left(t, cfg); len(got) != 1 {
			t.Errorf("found %v", got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSessionsClock: a clock that was far ahead once does not make every later file look
// too new.
func TestSessionsClock(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	ahead := cfg
	ahead.Now = func() time.Time { return time.Now().Add(1000 * time.Hour) }
	left(t, ahead)
	s := openSessions(t, cfg)
	if s.Unread() == nil {
		t.Error("a file of the future is read")
	}
	s.Add(sampleSession(1))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := left(t, cfg); len(got) != 1 {
		t.Errorf("found %v", got)
	}
}

// TestSessionsUpgrade: sessions of a version without a counter go on.
func TestSessionsUpgrade(t *testing.T) {
	t.Parallel()
	cfg := sessionsConfig(t, false)
	s := openSessions(t, cfg)
	s.Add(sampleSession(1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[countedAt : countedAt+8])
	if err := errors.Join(os.WriteFile(cfg.Path, b, 0o600), os.Remove(cfg.Path+counterSuffix)); err != nil {
		t.Fatal(err)
	}
	if got := left(t, cfg); len(got) != 1 {
		t.Errorf("found %v", got)
	}
	if err := os.Remove(cfg.Path + counterSuffix); err != nil {
		t.Fatal(err)
	}
	if got := left(t, cfg); len(got) != 0 {
		t.Errorf("found %v without a counter", got)
	}
}
