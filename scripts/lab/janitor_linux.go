package lab

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// sweep is what the janitor does once its standard input has ended: it kills
// what runs in the namespaces it was told about, but not its owner, and removes
// them.
const sweep = `cat >/dev/null
for ns in "$@"; do
	[ -e "/run/netns/$ns" ] || continue
	for try in 1 2 3 4 5 6 7 8 9 10; do
		pids=$(ip netns pids "$ns") || break
		[ -n "$pids" ] || break
		for pid in $pids; do
			[ "$pid" = "$OWNER" ] || kill -9 "$pid" 2>/dev/null
		done
		sleep 0.1
	done
	ip netns del "$ns"
done
for dir in $CGROUPS; do
	[ -d "$dir" ] && rmdir "$dir"
done
exit 0
`

// Janitor is a process that cleans up when this one ends, in whatever way: the
// kernel then closes the pipe that the janitor waits for.
type Janitor struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	once sync.Once
	err  error
}

func startJanitor(namespaces []string) (*Janitor, error) {
	j := &Janitor{cmd: exec.Command("sh", append([]string{"-c", sweep, "ferrylab"}, namespaces...)...)}
	j.cmd.Env = append(os.Environ(), "CGROUPS="+strings.Join(cgroupDirs(), " "), "OWNER="+strconv.Itoa(os.Getpid()))
	// An interrupt from the terminal is for the tests, not for who cleans up.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if j.pipe, err = j.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	return j, nil
}

// Finish lets the janitor do its work and waits for it. It may be called more
// than once.
func (j *Janitor) Finish() error {
	j.once.Do(func() {
		j.pipe.Close()
		if err := j.cmd.Wait(); err != nil {
			j.err = fmt.Errorf("lab: cleaning up: %w", err)
		}
	})
	return j.err
}
