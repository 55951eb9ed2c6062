package lab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// startTimeout bounds how long a program takes to become ready or to stop.
const startTimeout = 20 * time.Second

// ProcessConfig describes how to start a program.
type ProcessConfig struct {
	In   Namespace // where it runs
	Path string    // of the program
	Args []string
	Env  []string // in addition to that of this process
	Log  string   // file to which its output is appended
	// Ready reports whether a line of standard output says that it is ready.
	Ready func(line string) bool
	Cap   *MemoryCap // memory limit; nil: none
	// Prepare is called in the network namespace on the thread that then starts
	// the program: the program inherits what it unshares. May be nil.
	Prepare func() error
}

// Process is a program that runs in a namespace. StartProcess sets its fields.
type Process struct {
	Started time.Duration // time from the start until it was ready

	cfg   ProcessConfig
	cmd   *exec.Cmd
	child int           // id of the process that has taken over; 0: none
	ended chan struct{} // closed when the program has ended
}

// StartProcess starts a program and waits until it is ready, for up to 20 s.
// The program is killed when this process ends.
func StartProcess(cfg ProcessConfig) (*Process, error) {
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	p := &Process{cfg: cfg, cmd: exec.Command(cfg.Path, cfg.Args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("lab: %w", err)
	}
	begin := time.Now()
	if err := p.start(out, log); err != nil {
		return nil, err
	}
	p.Started = time.Since(begin)
	return p, nil
}

// start starts the program on a thread in the namespace. The thread lives as
// long as the program, because its end would kill the program (Pdeathsig).
func (p *Process) start(out io.Reader, log io.WriteCloser) error {
	started, ready := make(chan error, 1), make(chan struct{})
	onThread(func() {
		defer log.Close()
		err := p.cfg.In.enter()
		if err == nil && p.cfg.Prepare != nil {
			err = p.cfg.Prepare()
		}
		if err == nil {
			err = p.cmd.Start()
		}
		if err == nil && p.cfg.Cap != nil {
			err = p.cfg.Cap.Add(p.cmd.Process.Pid)
		}
		started <- err
		if p.cmd.Process != nil {
			scanOutput(io.TeeReader(out, log), p.cfg.Ready, ready)
			// ProcessState holds the result.
			_ = p.cmd.Wait()
		}
		close(p.ended)
	})
	if err := <-started; err != nil {
		p.Kill()
		return fmt.Errorf("lab: %w", err)
	}
	select {
	case <-ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("lab: %s ended: %v: %s", p.name(), p.cmd.ProcessState, p.Log())
	case <-time.After(startTimeout):
		p.Kill()
		return fmt.Errorf("lab: %s is not ready: %s", p.name(), p.Log())
	}
}

// scanOutput reads out to its end and closes ready at the first line for which
// isReady returns true.
func scanOutput(out io.Reader, says func(line string) bool, ready chan<- struct{}) {
	lines := bufio.NewScanner(out)
	for said := false; lines.Scan(); {
		if !said && says(lines.Text()) {
			close(ready)
			said = true
		}
	}
}

func (p *Process) name() string { return filepath.Base(p.cfg.Path) }

// Log returns the last 4 KiB of the program's output.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.cfg.Log)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-4096):])
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive reports whether the program is running.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the program.
func (p *Process) Signal(s syscall.Signal) error {
	if p.child != 0 {
		return os.NewSyscallError("kill", syscall.Kill(p.child, s))
	}
	return p.cmd.Process.Signal(s)
}

// TakenOver tells that another process has taken over, which has the same output.
func (p *Process) TakenOver(id int) { p.child = id }

// Kill kills the program and waits for its end.
func (p *Process) Kill() {
	if p.cmd.Process == nil {
		return
	}
	// The process may have ended already, and have left another one in its process group.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// Stop terminates the program with SIGTERM and waits. It returns an error if
// the program had already ended or exits with a failure.
func (p *Process) Stop() error {
	if !p.Alive() {
		return fmt.Errorf("lab: %s had ended by itself: %v", p.name(), p.cmd.ProcessState)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(startTimeout)
}

// Wait waits until the program has ended and kills it after the given time. It
// returns an error if it killed the program or the program failed.
func (p *Process) Wait(within time.Duration) error {
	select {
	case <-p.ended:
	case <-time.After(within):
		p.Kill()
		return fmt.Errorf("lab: %s did not stop within %v", p.name(), within)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("lab: %s ended: %v", p.name(), p.cmd.ProcessState)
	}
	return nil
}
