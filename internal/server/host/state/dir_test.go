package state

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// made returns a directory in which an identity was made, and not held.
func made(t *testing.T) (path string, id Identity) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a", "b")
	d, err := Open(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if !d.Created {
		t.Fatal("Created is not set at the first start")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return path, d.Identity
}

func TestFirstStart(t *testing.T) {
	var log bytes.Buffer
	path := filepath.Join(t.TempDir(), "state")
	d, err := Open(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, want := range []string{"made a relay id and a master key", path, d.Identity.Relay.String()} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is missing in %s", want, log.String())
		}
	}
	if strings.Contains(log.String(), fmt.Sprintf("%x", d.Identity.Master[:])) {
		t.Error("the master key is in the log")
	}
	if u := uuid.UUID(d.Identity.Relay); u.Version() != 4 || d.Identity.Master.IsZero() {
		t.Errorf("relay id %v", u)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700, identityName: 0o600, lockName: 0o600} {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q: mode %v (%v), want %v", name, info.Mode(), err, mode)
		}
	}
	if _, err := os.Stat(filepath.Join(path, tempName)); err == nil {
		t.Error("the temporary file is still there")
	}
}

func TestReuse(t *testing.T) {
	path, want := made(t)
	for range 2 {
		var log bytes.Buffer
		d, err := Open(path, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if d.Identity != want || d.Created || log.Len() > 0 {
			t.Errorf("another identity, or made again: %s", log.String())
		}
		d.Close()
	}
	if _, other := made(t); other.Relay == want.Relay || other.Master == want.Master {
		t.Error("two directories have one identity")
	}
}

func TestSecondProcess(t *testing.T) {
	path, _ := made(t)
	other := testkit.StartChild(t, path)
	if said := other.Line(t); said != "<nil>" {
		t.Fatalf("the other process: %s", said)
	}
	_, err := Open(path, quiet())
	if !errors.Is(err, ErrInUse) {
		t.Errorf("while another process holds it: %v", err)
	}
	other.Stop(t)
	d, err := Open(path, quiet())
	if err != nil {
		t.Fatalf("after it ended: %v", err)
	}
	defer d.Close()
	said := testkit.StartChild(t, path).Line(t)
	if want := fmt.Sprintf("in use by another process with id %d", os.Getpid()); !strings.Contains(said, want) {
		t.Errorf("the other process says %q, want %q", said, want)
	}
}

func TestSameProcess(t *testing.T) {
	path, _ := made(t)
	d, err := Open(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := Open(path, quiet()); !errors.Is(err, ErrInUse) {
		t.Errorf("a second Open: %v", err)
	}
}

func TestDamage(t *testing.T) {
	path, _ := made(t)
	file := filepath.Join(path, identityName)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, quiet()); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadFile(file); err != nil || !bytes.Equal(left, content) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	for n := range len(whole) {
		refused(fmt.Sprintf("first %d bytes", n), whole[:n])
	}
	for i := range whole {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 0x01
		refused(fmt.Sprintf("byte %d flipped", i), flipped)
	}
	refused("a byte more", append(bytes.Clone(whole), '\n'))
	refused("zeroes", make([]byte, len(whole)))
	refused("large", make([]byte, maxIdentity+1))
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path, quiet())
	if err != nil {
		t.Fatalf("the whole file again: %v", err)
	}
	d.Close()
}

// TestDamagedButConsistent: a right checksum does not make a wrong identity right.
func TestDamagedButConsistent(t *testing.T) {
	_, id := made(t)
	noKey, noID := id, id
	noKey.Master = [32]byte{}
	noID.Relay = [16]byte{}
	for name, i := range map[string]Identity{"no key": noKey, "no id": noID} {
		if _, err := decode(i.encode()); err != ErrDamaged {
			t.Errorf("%s: %v", name, err)
		}
	}
	if again, err := decode(id.encode()); err != nil || again != id {
		t.Errorf("round trip: %v", err)
	}
}

func TestNotAFile(t *testing.T) {
	path, _ := made(t)
	file := filepath.Join(path, identityName)
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, quiet()); !errors.Is(err, ErrForeign) {
		t.Errorf("the identity was moved away next to itself: %v", err)
	}
	if err := os.Symlink(file+".away", file); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, quiet()); !errors.Is(err, keyfile.ErrNotRegular) {
		t.Errorf("a symbolic link: %v", err)
	}
}

func TestPermissions(t *testing.T) {
	path, _ := made(t)
	file := filepath.Join(path, identityName)
	for _, c := range []struct {
		path string
		mode os.FileMode
	}{{file, 0o640}, {file, 0o604}, {file, 0o660}, {path, 0o702}, {path, 0o777}} {
		info, err := os.Stat(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err = Open(path, quiet())
		if !errors.Is(err, keyfile.ErrPermissions) || !strings.Contains(err.Error(), "chmod") {
			t.Errorf("%s with %v: %v", c.path, c.mode, err)
		}
		if err := os.Chmod(c.path, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Open(path, quiet())
	if err != nil {
		t.Fatalf("as it was: %v", err)
	}
	d.Close()
}

func TestForeignDirectory(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "passwd"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, quiet()); !errors.Is(err, ErrForeign) {
		t.Errorf("a directory with other files: %v", err)
	}
	if _, err := Open(filepath.Join(path, "passwd"), quiet()); err == nil {
		t.Error("a file was taken for a directory")
	}
}

// TestCutShort: a first start that was killed while it wrote.
func TestCutShort(t *testing.T) {
	path := t.TempDir()
	for _, name := range []string{tempName, lockName} {
		if err := os.WriteFile(filepath.Join(path, name), []byte("half of a"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(path, mountName), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path, quiet())
	if err != nil || !d.Created {
		t.Fatalf("%v", err)
	}
	defer d.Close()
	info, err := os.Stat(filepath.Join(path, identityName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestIdentityIsHidden(t *testing.T) {
	_, id := made(t)
	text := fmt.Sprintf("%v %+v %#v %x", id, id, id, id.Master)
	if strings.Contains(text, fmt.Sprintf("%x", id.Master[:])) || !strings.Contains(text, "redacted") {
		t.Errorf("printed as %s", text)
	}
}

// TestRuntime: the files that change are in the runtime directory, which one process
// holds.
func TestRuntime(t *testing.T) {
	first, _ := made(t)
	second, _ := made(t)
	runtime := filepath.Join(t.TempDir(), "run", "ferry")
	a, err := Open(first, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.UseRuntime(runtime, nil); err != nil {
		t.Fatal(err)
	}
	if got := [...]string{filepath.Dir(a.Files().Allocations), filepath.Dir(a.Files().Sessions)}; got != [...]string{runtime, runtime} {
		t.Errorf("files in %v, want %s", got, runtime)
	}
	b, err := Open(second, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.UseRuntime(runtime, nil); !errors.Is(err, ErrInUse) {
		t.Errorf("two relays in one runtime directory: %v", err)
	}
	if got := filepath.Dir(b.Files().Allocations); got != second {
		t.Errorf("files in %s, want %s", got, second)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.UseRuntime(runtime, nil); err != nil {
		t.Error(err)
	}
}
