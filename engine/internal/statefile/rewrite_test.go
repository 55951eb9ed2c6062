package statefile

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func rewriteAll(t testing.TB, l *File, all []Record) bool {
	t.Helper()
	if l.Rewrite(len(all)) != nil {
		return false
	}
	for i := range all {
		if l.Add(&all[i]) == 0 {
			return false
		}
	}
	done := false
	testkit.Eventually(t, "the new file is complete, or has failed", func() bool {
		done = done || l.Complete()
		return done || !l.Rewriting()
	})
	return done
}

func samples(t testing.TB, n int) (all []Record) {
	for i := range n {
		all = append(all, sample(t, i+1))
	}
	return all
}

// TestRewrite: a rewritten file has all records and keeps that it was settled, and a later error is
// reported again.
func TestRewrite(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		l, reported := failing(t, cfg, 1<<30, true)
		fill(t, l, 3)
		l.Settle()
		l.fail(errDisk)
		if !l.Incomplete() || l.Storing() {
			t.Error("complete after an error")
		}
		all := samples(t, 5)
		if !rewriteAll(t, l, all) || l.Incomplete() {
			t.Fatal("not complete again")
		}
		wantReported(t, *reported, errDisk)
		extra := sample(t, 6)
		p := l.Add(&extra)
		l.Remove(p)
		l.SetEndpoint(2, 77)
		all[1].Endpoint = 77
		crash(t, l)
		cfg.Boot++
		left := openAndCrash(t, cfg)
		wantComplete(t, left, 1)
		if len(left.Records) != len(all) {
			t.Fatalf("%d records", len(left.Records))
		}
		if !left.Settled {
			t.Error("not settled")
		}
		for i := range left.Records {
			if left.Records[i].Record != all[i] {
				t.Errorf("record %d: %+v, want %+v", i, left.Records[i].Record, all[i])
			}
		}
		if _, err := os.Stat(cfg.Path + keyfile.Suffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the new file's name is still there: %v", err)
		}
	})
}

// TestRewriteAgain: the second error is reported, and a second rewriting mends it.
func TestRewriteAgain(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	l, reported := failing(t, cfg, 1<<30, true)
	all := samples(t, 2)
	for range 3 {
		l.fail(errDisk)
		if !rewriteAll(t, l, all) {
			t.Fatal("not complete again")
		}
	}
	if len(*reported) != 3 {
		t.Errorf("reported %v", *reported)
	}
	closed(t, l)
	cfg.Boot, cfg.Machine = 2, "up again"
	wantComplete(t, openAndCrash(t, cfg), 1)
}

// TestRewriteCut: wherever the rewriting fails or the process is killed, the next process
// does not take the file for complete, and nothing is reported twice.
func TestRewriteCut(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		path := cfg.Path
		for _, failure := range []bool{true, false} {
			for step := range 40 {
				cfg.Path = path + string(rune('A'+step))
				l, reported := failing(t, cfg, 1<<30, true)
				fill(t, l, 2)
				l.fail(errDisk)
				all := samples(t, 4)
				if err := l.Rewrite(len(all)); err != nil {
					t.Fatal(err)
				}
				if failure {
					l.disk.file = &brokenFile{file: l.disk.file, writes: step}
				}
				done := false
				for i := range all {
					if failure || i < step {
						l.Add(&all[i])
					}
				}
				if failure {
					testkit.Eventually(t, "an end", func() bool { done = done || l.Complete(); return done || !l.Rewriting() })
				}
				wantReported(t, *reported, errDisk)
				crash(t, l)
				cfg.Boot++
				left := openAndCrash(t, cfg)
				switch {
				case done:
					wantComplete(t, left, cfg.Boot-1)
					if len(left.Records) != len(all) {
						t.Errorf("step %d: %d records", step, len(left.Records))
					}
				case left.Complete:
					t.Errorf("failure %v, step %d: complete with %d records", failure, step, len(left.Records))
				}
				if done || step > len(all) && !failure {
					break
				}
				if step == 39 {
					t.Error("never complete")
				}
			}
		}
	})
}

// TestRewriteFull: a file that had no place is complete again when there are fewer records.
func TestRewriteFull(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	var reported []error
	cfg.OnError = func(err error) { reported = append(reported, err) }
	l, _ := open(t, cfg)
	fill(t, l, cfg.Capacity)
	r := sample(t, 99)
	l.Add(&r)
	wantReported(t, reported, ErrFull)
	if err := l.Rewrite(cfg.Capacity); !errors.Is(err, ErrFull) || !l.Storing() {
		t.Errorf("rewrite of a full file: %v", err)
	}
	if !rewriteAll(t, l, samples(t, 3)) {
		t.Fatal("not complete again")
	}
	fill(t, l, cfg.Capacity-3)
	l.Add(&r)
	if len(reported) != 2 {
		t.Errorf("reported %v", reported)
	}
	closed(t, l)
}

// TestOpenLater: a file that could not be created is written when it can be.
func TestOpenLater(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"", counterSuffix} {
		cfg := testConfig(t, false)
		dir, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		var reported []error
		cfg.OnError = func(err error) { reported = append(reported, err) }
		var f *os.File
		if lost != "" {
			if f, _, err = openFile(dir, "state"); err != nil {
				t.Fatal(err)
			}
		}
		l, left, err := openLater(dir, cfg, f, scan{seed: recordSeed(cfg.Relay)}, errDisk)
		if err != nil || l.Storing() || left.Complete {
			t.Fatal(err, left)
		}
		wantReported(t, reported, errDisk)
		all := samples(t, 2)
		if !rewriteAll(t, l, all) {
			t.Fatal("not written")
		}
		crash(t, l)
		cfg.Path, cfg.Boot = dir.Name()+"/state", 2
		wantComplete(t, openAndCrash(t, cfg), 1)
	}
}
