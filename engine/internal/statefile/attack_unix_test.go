//go:build unix

package statefile

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
)

var openers = map[string]func(path string) error{
	"state": func(path string) error {
		l, _, err := Open(Config{Path: path, Capacity: 8, Relay: [16]byte{1}, Boot: 1, Machine: "up"})
		if err == nil {
			err = l.Close()
		}
		return err
	},
	"sessions": func(path string) error {
		s, err := OpenSessions(SessionsConfig{Path: path, Capacity: 8, Relay: [16]byte{1}, MaxAge: time.Hour, Machine: "up"})
		if err == nil {
			err = s.Close()
		}
		return err
	},
}

// TestPlanted: a link to another file, a special file, and a file that others can read
// or that another user made are refused, and nothing of them changes.
func TestPlanted(t *testing.T) {
	t.Parallel()
	precious := []byte("precious")
	for _, suffix := range []string{"", counterSuffix} {
		for kind, open := range openers {
			for name, c := range map[string]struct {
				plant func(target, path string) error
				want  error
			}{
				"symbolic link": {os.Symlink, keyfile.ErrNotRegular},
				"hard link":     {os.Link, keyfile.ErrHardLinks},
				"fifo":          {func(_, path string) error { return syscall.Mkfifo(path, 0o600) }, keyfile.ErrNotRegular},
				"open mode":     {func(_, path string) error { return os.WriteFile(path, precious, 0o640) }, keyfile.ErrPermissions},
				"other owner": {func(_, path string) error {
					return errors.Join(os.WriteFile(path, precious, 0o600), os.Chown(path, 12345, 12345))
				}, keyfile.ErrOwner},
			} {
				t.Run(kind+suffix+" "+name, func(t *testing.T) {
					if name == "other owner" && os.Geteuid() != 0 {
						t.Skip("only root can give a file to another user")
					}
					target, path := t.TempDir()+"/target", t.TempDir()+"/planted"
					if err := os.WriteFile(target, precious, 0o644); err != nil {
						t.Fatal(err)
					}
					if name == "hard link" {
						if err := os.Chmod(target, 0o600); err != nil {
							t.Fatal(err)
						}
					}
					if err := c.plant(target, path+suffix); err != nil {
						t.Fatal(err)
					}
					before, _ := os.Stat(target)
					if err := open(path); !errors.Is(err, c.want) {
						t.Errorf("%v, want %q", err, c.want)
					}
					after, err := os.Stat(target)
					if b, _ := os.ReadFile(target); err != nil || !bytes.Equal(b, precious) || after.Mode() != before.Mode() {
						t.Errorf("the target has %d bytes and mode %v (%v)", len(b), after.Mode(), err)
					}
				})
			}
		}
	}
}
