//go:build unix

package state

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

// otherUser is a user id that the tests of this package do not have.
const otherUser = 12345

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
}

// wantRefused opens a directory, which must fail with want and name what to do.
func wantRefused(t *testing.T, path string, want error, say string) {
	t.Helper()
	d, err := Open(path, quiet())
	if err == nil {
		d.Close()
	}
	if !errors.Is(err, want) || !strings.Contains(err.Error(), say) {
		t.Errorf("%v, want %q and %q", err, want, say)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// victim is a file outside of the state directory that must not change.
func victim(t *testing.T) (name string, check func()) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "victim")
	content := []byte("7\n")
	must(t, os.WriteFile(name, content, 0o644))
	return name, func() {
		t.Helper()
		got, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("the target has %q (%v), had %q", got, err, content)
		}
		if info, err := os.Stat(name); err != nil || info.Mode() != 0o644 {
			t.Errorf("the target has mode %v (%v)", info.Mode(), err)
		}
	}
}

// TestPlantedLinks: a file of the directory that is a link to another file is refused,
// and the other file does not change.
func TestPlantedLinks(t *testing.T) {
	for _, name := range []string{lockName, identityName} {
		for kind, link := range map[string]struct {
			make func(string, string) error
			want error
		}{
			"symbolic": {os.Symlink, keyfile.ErrNotRegular},
			"hard":     {os.Link, keyfile.ErrHardLinks},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				path, _ := made(t)
				target, check := victim(t)
				if kind == "hard" {
					must(t, os.Chmod(target, 0o600))
					defer os.Chmod(target, 0o600)
				}
				must(t, os.Remove(filepath.Join(path, name)))
				must(t, link.make(target, filepath.Join(path, name)))
				wantRefused(t, path, link.want, filepath.Join(path, name))
				must(t, os.Chmod(target, 0o644))
				check()
			})
		}
	}
}

// TestDanglingLock: no file is created where a link leads.
func TestDanglingLock(t *testing.T) {
	path, _ := made(t)
	target := filepath.Join(t.TempDir(), "created")
	must(t, os.Remove(filepath.Join(path, lockName)))
	must(t, os.Symlink(target, filepath.Join(path, lockName)))
	wantRefused(t, path, keyfile.ErrNotRegular, "symbolic link")
	if _, err := os.Lstat(target); err == nil {
		t.Error("the target of the link was created")
	}
}

// TestPlantedIdentity: an identity of another user, who knows its key, is refused.
func TestPlantedIdentity(t *testing.T) {
	needRoot(t)
	for _, name := range []string{"", identityName, lockName} {
		path, _ := made(t)
		file := filepath.Join(path, name)
		must(t, os.Chown(file, otherUser, otherUser))
		wantRefused(t, path, keyfile.ErrOwner, "chown 0 "+file)
	}
}

// TestPlantedDirectory: a link of another user to a directory of ours is refused; one of
// ours is what systemd makes of a dynamic user's directory.
func TestPlantedDirectory(t *testing.T) {
	needRoot(t)
	path, want := made(t)
	link := filepath.Join(t.TempDir(), "ferry")
	must(t, os.Symlink(path, link))
	d, err := Open(link, quiet())
	must(t, err)
	if d.Identity != want {
		t.Error("another identity")
	}
	must(t, d.Close())
	must(t, os.Lchown(link, otherUser, otherUser))
	wantRefused(t, link, keyfile.ErrOwner, link)
}

// TestSpecialFiles: a FIFO does not block the start, and a device is not opened.
func TestSpecialFiles(t *testing.T) {
	for _, name := range []string{lockName, identityName} {
		path, _ := made(t)
		file := filepath.Join(path, name)
		must(t, os.Remove(file))
		must(t, syscall.Mkfifo(file, 0o600))
		wantRefused(t, path, keyfile.ErrNotRegular, file)
	}
}

// TestGroup: a group may write the directory only if root gave it to the group of this
// process, as Kubernetes does with a volume.
func TestGroup(t *testing.T) {
	path, _ := made(t)
	must(t, os.Chmod(path, 0o770))
	if os.Geteuid() != 0 {
		wantRefused(t, path, keyfile.ErrPermissions, "chmod 0750 "+path)
		return
	}
	d, err := Open(path, quiet())
	must(t, err)
	must(t, d.Close())
	must(t, os.Chown(path, 0, otherUser))
	wantRefused(t, path, keyfile.ErrPermissions, "chmod 0750 "+path)
}

// TestLockContent: a lock that holds more than a process id was not written by Ferry,
// and is left as it is.
func TestLockContent(t *testing.T) {
	path, _ := made(t)
	content := bytes.Repeat([]byte("precious "), 10)
	must(t, os.WriteFile(filepath.Join(path, lockName), content, 0o600))
	d, err := Open(path, quiet())
	must(t, err)
	defer d.Close()
	if got, err := os.ReadFile(filepath.Join(path, lockName)); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the lock has %q (%v)", got, err)
	}
}
