package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

func socketPair() (ours net.Conn, theirs *os.File, err error) {
	f, theirs, err := sock.SocketPair(syscall.SOCK_STREAM, "upgrade")
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if ours, err = net.FileConn(f); err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// inherited returns a descriptor that programs which this process starts do not get.
func inherited(fd int, name string) (*os.File, error) {
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), name)
	if f == nil {
		return nil, fmt.Errorf("descriptor %d is not open", fd)
	}
	if _, err := f.Stat(); err != nil {
		return nil, err
	}
	return f, nil
}

// checkOwner returns an error for a program that others than root and the user of this process may
// have written.
func checkOwner(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, neither to root nor to the user of this process, %d", path, stat.Uid, os.Geteuid())
	}
	if info.Mode()&0o022 != 0 {
		return fmt.Errorf("others may write %s (chmod go-w)", path)
	}
	return nil
}

// CheckParents returns an error if the process that replaces this one would end with it. It is called
// at the start: a process whose parent has ended since is a child of process 1, and not what that waits for.
func CheckParents() error { return checkParents(os.DirFS("/proc"), os.Getpid(), os.Getenv) }

// inits are the programs that run as process 1 and do not end with a process that they started. Those of containers
// (tini, dumb-init, a shell) do.
var inits = []string{"systemd", "init", "openrc-init"}

func checkParents(proc fs.FS, process int, getenv func(string) string) error {
	isUnit := func(process int) bool { return getenv("SYSTEMD_EXEC_PID") == strconv.Itoa(process) }
	starter, unit := parentOf(proc, process), isUnit(process)
	for starter.process > 1 && starter.isShell && !unit {
		unit = isUnit(starter.process)
		starter = parentOf(proc, starter.process)
	}
	const instead = ": restart it instead, after which matches over UDP and DTLS go on, see docs/operating.md"
	switch name := path.Base(starter.name); {
	case process == 1:
		return errors.New("this is process 1 of its container, with whose end the kernel ends all others" + instead)
	case unit && getenv("NOTIFY_SOCKET") == "":
		return errors.New("systemd would end the new process with this one, since the unit has no Type=notify")
	case unit:
	case starter.process == 0, name == "conmon", strings.HasPrefix(name, "containerd-shim"):
		return errors.New("a container runtime has started this process, and ends its container with it" + instead)
	case starter.process == 1 && starter.name != "" && !slices.Contains(inits, name):
		return fmt.Errorf("%s, process 1 of the container, has started this process, and the container ends with it%s", name, instead)
	}
	return nil
}

// parent is a process that may wait for the end of its child.
type parent struct {
	process int    // 0: it is outside of this container; -1: it is not known, or does not wait
	name    string // of its command line; empty: not known
	isShell bool   // which ends with the child
}

func parentOf(proc fs.FS, process int) parent {
	id, group := statusOf(proc, process)
	p := parent{process: id}
	if id < 1 {
		return p
	}
	line, err := fs.ReadFile(proc, strconv.Itoa(id)+"/cmdline")
	if err != nil {
		return p
	}
	first, _, _ := bytes.Cut(line, []byte{0})
	p.name = string(first)
	p.isShell = slices.Contains([]string{"sh", "ash", "bash", "dash", "busybox"}, path.Base(p.name))
	if _, groupOfShell := statusOf(proc, id); p.isShell && group != groupOfShell {
		return parent{process: -1} // The shell of a person gives each command a group, and goes on.
	}
	return p
}

// statusOf returns the parent and the group of a process, see proc_pid_stat(5), -1 if they are not known.
func statusOf(proc fs.FS, process int) (parent, group int) {
	text, err := fs.ReadFile(proc, strconv.Itoa(process)+"/stat")
	if err != nil {
		return -1, -1
	}
	_, err = fmt.Sscanf(string(text[bytes.LastIndexByte(text, ')')+1:]), " %1s %d %d", new(string), &parent, &group)
	if err != nil {
		return -1, -1
	}
	return parent, group
}
