package statefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

var errDisk = errors.New("disk broken")

type brokenFile struct {
	file
	writes int // that still work
	mark   bool
	sync   error
	cut    error
}

func (b *brokenFile) WriteAt(p []byte, at int64) (int, error) {
	if at == 0 && b.mark {
		return b.file.WriteAt(p, at)
	}
	if b.writes--; b.writes < 0 {
		return 0, errDisk
	}
	return b.file.WriteAt(p, at)
}

func (b *brokenFile) Sync() error { return b.sync }

func (b *brokenFile) Truncate(size int64) error {
	if b.cut != nil {
		return b.cut
	}
	return b.file.Truncate(size)
}

func failing(t testing.TB, cfg Config, writes int, mark bool) (*File, *[]error) {
	t.Helper()
	reported := new([]error)
	cfg.OnError = func(err error) { *reported = append(*reported, err) }
	l, _ := open(t, cfg)
	l.disk.file = &brokenFile{file: l.disk.file, writes: writes, mark: mark}
	return l, reported
}

func wantReported(t testing.TB, reported []error, want error) {
	t.Helper()
	if len(reported) != 1 || !errors.Is(reported[0], want) {
		t.Errorf("reported %v, want %v once", reported, want)
	}
}

// TestWriteFails: the state file reports one error and stores nothing more.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	for writes := range 4 {
		cfg := testConfig(t, true)
		l, reported := failing(t, cfg, writes, true)
		r := sample(t, 1)
		p := l.Add(&r)
		l.SetEndpoint(p, 5)
		l.SetLinks(p, 5, Host)
		l.Remove(p)
		if l.Add(&r) != 0 || l.Storing() {
			t.Error("stored after a failure")
		}
		wantReported(t, *reported, errDisk)
		closed(t, l)
		cfg.Boot++
		wantIncomplete(t, openAndCrash(t, cfg), ErrUnstored)
		cfg.Boot++
		wantComplete(t, openAndCrash(t, cfg), 2)
	}
}

// TestReserveFails: a full disk is an error before the mapping of the chunk is
// accessed.
func TestReserveFails(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	cfg.Capacity = 2*chunkPlaces + 10
	l, reported := failing(t, cfg, 2, true)
	if !l.IsMapped() {
		t.Skip("no mapping on this platform, so nothing is reserved")
	}
	all := fill(t, l, 2*chunkPlaces)
	r := sample(t, 1)
	if p := l.Add(&r); p != 0 {
		t.Errorf("place %d without room", p)
	}
	wantReported(t, *reported, errDisk)
	crash(t, l)
	cfg.Boot++
	left := openAndCrash(t, cfg)
	wantRecords(t, left, all)
	wantIncomplete(t, left, ErrUnstored)
}

// TestMarkFails: a file that cannot even be marked is removed.
func TestMarkFails(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, true)
	l, reported := failing(t, cfg, 3, false)
	fill(t, l, 1)
	l.SetEndpoint(1, 5)
	wantReported(t, *reported, errDisk)
	if _, err := os.Stat(cfg.Path); runtime.GOOS != "windows" && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	crash(t, l)
}

func TestSettleAndFullFail(t *testing.T) {
	t.Parallel()
	l, reported := failing(t, testConfig(t, false), 0, false)
	l.Settle()
	wantReported(t, *reported, errDisk)
	crash(t, l)

	cfg := testConfig(t, false)
	l, reported = failing(t, cfg, 1, false)
	if !l.IsMapped() {
		l.disk.file.(*brokenFile).writes = 2 * cfg.Capacity
	}
	fill(t, l, cfg.Capacity)
	r := sample(t, 1)
	l.Add(&r)
	wantReported(t, *reported, errDisk)
	crash(t, l)
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, true)
	l, _ := open(t, cfg)
	fill(t, l, 3)
	closed(t, l)
	file := contents(t, cfg)
	file[offset(2)+9] ^= 1
	file[offset(3)+9] ^= 1
	for name, c := range map[string]struct {
		broken   brokenFile
		capacity int
		want     error
	}{
		"nothing": {brokenFile{writes: 3}, 8, nil},
		"redo":    {brokenFile{writes: 0}, 8, errDisk},
		"header":  {brokenFile{writes: 1}, 8, errDisk},
		"damaged": {brokenFile{writes: 2}, 8, errDisk},
		"sync":    {brokenFile{writes: 3, sync: errDisk}, 8, errDisk},
		"grow":    {brokenFile{writes: 3, cut: errDisk}, 9, errDisk},
		"shrink":  {brokenFile{writes: 3, cut: errDisk}, 7, errDisk},
	} {
		cfg.Capacity = c.capacity
		if err := os.WriteFile(cfg.Path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		dir, err := os.OpenRoot(filepath.Dir(cfg.Path))
		if err != nil {
			t.Fatal(err)
		}
		f, size, err := openFile(dir, filepath.Base(cfg.Path))
		if err != nil {
			t.Fatal(err)
		}
		count, err := openCounter(dir, filepath.Base(cfg.Path), cfg.Relay)
		if err != nil {
			t.Fatal(err)
		}
		machine := machineRun(cfg.Machine)
		s := scanFile(f, size, cfg.Relay, machine, nil)
		l := newFile(cfg, f, machine, &s)
		l.dir, l.counter = dir, count
		c.broken.file = f
		l.disk.file = &c.broken
		if err := l.start(f, size, &s); !errors.Is(err, c.want) || len(s.damaged) != 1 || s.redoPlace != 3 {
			t.Errorf("%s: %v, want %v; damaged %v, torn %d", name, err, c.want, s.damaged, s.redoPlace)
		}
		crash(t, l)
	}
}

func TestSyncFails(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	l, _ := open(t, cfg)
	l.disk.file = &brokenFile{file: l.disk.file, mark: true, sync: errDisk}
	if err := l.Close(); !errors.Is(err, errDisk) {
		t.Errorf("Close: %v", err)
	}
	cfg.Boot, cfg.Machine = 2, "up again"
	wantIncomplete(t, openAndCrash(t, cfg), ErrMachine)
}

// TestWrongPlace: a change of a place without a record is reported.
func TestWrongPlace(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]func(l *File){
		"beyond":  func(l *File) { l.Remove(9) },
		"free":    func(l *File) { l.SetEndpoint(5, 1) },
		"removed": func(l *File) { l.Remove(1); l.Remove(1) },
		"damaged": func(l *File) {
			if _, err := l.disk.file.WriteAt([]byte{99}, offset(1)+20); err != nil {
				t.Error(err)
			}
			l.SetLinks(1, 5, Host)
		},
	} {
		modes(t, func(t *testing.T, cfg Config) {
			var reported []error
			cfg.OnError = func(err error) { reported = append(reported, err) }
			l, _ := open(t, cfg)
			fill(t, l, 2)
			wrong(l)
			if len(reported) != 1 || !errors.Is(reported[0], ErrPlace) {
				t.Errorf("%s: reported %v", name, reported)
			}
			crash(t, l)
			cfg.Boot++
			wantIncomplete(t, openAndCrash(t, cfg), ErrUnstored)
		})
	}
}

func TestTruncatedMapping(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	cfg.Capacity = 100_000
	var reported []error
	cfg.OnError = func(err error) { reported = append(reported, err) }
	l, _ := open(t, cfg)
	if !l.IsMapped() {
		t.Skip("no mapping on this platform, so nothing to fault")
	}
	fill(t, l, 1000)
	if err := os.Truncate(cfg.Path, 0); err != nil {
		t.Fatal(err)
	}
	l.SetLinks(999, 1, Host)
	var fault interface{ Addr() uintptr }
	if len(reported) != 1 || !errors.As(reported[0], &fault) {
		t.Errorf("reported %v", reported)
	}
	crash(t, l)
	cfg.Boot++
	wantIncomplete(t, openAndCrash(t, cfg), ErrUnstored)
}

type unreadable struct {
	io.ReaderAt
	from, to int64
}

func (u unreadable) ReadAt(p []byte, at int64) (int, error) {
	if at < u.to && at+int64(len(p)) > u.from {
		return 0, errDisk
	}
	return u.ReaderAt.ReadAt(p, at)
}

// TestUnreadable: records in an unreadable sector are lost, others are not.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	cfg.Capacity = 4 * chunkPlaces
	l, _ := open(t, cfg)
	all := fill(t, l, 3*chunkPlaces)
	defer crash(t, l)
	for _, c := range []struct {
		from, to      int64
		found, damage int
	}{
		{0, 1, 3 * chunkPlaces, 0},
		{offset(1), offset(2), 2 * chunkPlaces, chunkPlaces},
		{offset(chunkPlaces) + 5, offset(chunkPlaces) + 6, 2 * chunkPlaces, chunkPlaces},
		{offset(4*chunkPlaces) + 5, offset(4*chunkPlaces) + 6, 3 * chunkPlaces, chunkPlaces},
	} {
		s := scanFile(unreadable{l.disk.file, c.from, c.to}, fileSize(cfg.Capacity), cfg.Relay, machineRun(cfg.Machine), nil)
		left := s.previousRun()
		checkScan(t, "unreadable from", int(c.from), left, all)
		wantIncomplete(t, left, errDisk)
		if len(left.Records) != c.found || left.Damaged != c.damage {
			t.Errorf("from %d: %d found and %d damaged", c.from, len(left.Records), left.Damaged)
		}
	}
}

type slowFile struct{ file }

func (s slowFile) WriteAt(p []byte, at int64) (int, error) {
	time.Sleep(slowChange)
	return s.file.WriteAt(p, at)
}

func TestSlowChanges(t *testing.T) {
	t.Parallel()
	l, _ := open(t, testConfig(t, true))
	defer closed(t, l)
	r := sample(t, 1)
	p := l.Add(&r)
	before := l.SlowChanges()
	l.disk.file = slowFile{l.disk.file}
	l.SetEndpoint(p, 7)
	l.Remove(p)
	if got := l.SlowChanges() - before; got != 2 {
		t.Errorf("%d changes were slow, want 2", got)
	}
}
