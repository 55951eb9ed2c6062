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

// startWithin is the time limit until a program reports that it is ready.
const startTimeout = 20 * time.Second

// ProcessConfig says how to start a program.
type ProcessConfig struct {
	In   Namespace // where it runs
	Path string    // of the program
	Args []string
	Env  []string // besides that of this process
	Log  string   // file to whose end goes what it writes
	// Ready tells from a line of its standard output that it is ready.
	Ready func(line string) bool
	Cap   *MemoryCap // a bound of its memory; nil: none
	// Prepare is called on the thread that then starts the program, in its
	// network namespace: what it unshares is the program's. Nil: nothing.
	Prepare func() error
}

// Process is a program that runs in a namespace. Its fields are fixed by
// StartProcess.
type Process struct {
	Started time.Duration // from the start until it was ready

	cfg   ProcessConfig
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// StartProcess starts a program and waits until it is ready, 20 s at most. It
// ends with this process, however that ends.
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
// long as the program, which would be killed with it (Pdeathsig).
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
			// How it ended is in ProcessState.
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

// readiness reads the output to its end and tells when it says that the program
// is ready.
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

// Log returns the end of what the program has written, at most 4 KiB.
func (p *Process) Log() string {
	raw, err := os.ReadFile(p.cfg.Log)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-4096):])
}

// Alive reports whether the program runs.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the program.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the program as a crash does and waits for it.
func (p *Process) Kill() {
	if p.cmd.Process == nil {
		return
	}
	// The process may have ended already.
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Stop ends the program as an operator does. The error says how it ended, if
// not well.
func (p *Process) Stop() error {
	if !p.Alive() {
		return fmt.Errorf("lab: %s had ended by itself: %v", p.name(), p.cmd.ProcessState)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(startTimeout)
}

// Wait waits until the program has ended by itself, and kills it if it does not
// within that time. The error says how it ended, if not well.
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
