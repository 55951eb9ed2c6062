package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/alloc/api"
)

const (
	adminAddr = "127.0.0.1:7778" // in the relay's namespace
	stateName = "state"          // of the state directory, in RelayConfig.Dir
	// startWithin is how long the relay may take to say that it is ready.
	startWithin = 20 * time.Second
	// secret is what the laboratory's backends show to the API, with a number.
	secret = "laboratory-backend-token-0123456789abcdef-%d"
)

// settings is the configuration of `ferry serve`; the address and the state
// directory go in.
const settings = `udp: [%[1]s]
http: %[1]s
admin: ` + adminAddr + `
behind_proxy: true
state_dir: %[2]s
log_format: json
tokens:
`

// credential is the part of settings that is repeated per token.
const credential = `  - secret: ` + secret + `
    project: laboratory
    environment: test
    kind: server
`

// Binary builds ferry into dir and returns its path.
func Binary(dir string) (string, error) {
	path := filepath.Join(dir, "ferry")
	out, err := exec.Command("go", "build", "-o", path, "github.com/ferryrelay/ferry/cmd/ferry").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("lab: go build: %w: %s", err, out)
	}
	return path, nil
}

// RelayConfig says how ferry is started.
type RelayConfig struct {
	Network *Network
	Binary  string     // as Binary returns it
	Dir     string     // for configuration, state and log; the state of a relay before is found there
	Flags   []string   // of `ferry serve`, besides the configuration
	Env     []string   // besides that of this process
	Cap     *MemoryCap // a bound of its memory; nil: none
	Tokens  int        // backends that may call the API; 0: 1
	In      Namespace  // where it runs; zero: the relay's
	// Prepare is called on the thread that then starts the process, in its
	// network namespace: what it unshares is the process's. Nil: nothing.
	Prepare func() error
	Addr    netip.AddrPort // where it listens; zero: RelayAddr
}

// Relay is a running `ferry serve`. Its fields are fixed by StartRelay.
type Relay struct {
	Started time.Duration // from the start of the process until it was ready

	cfg   RelayConfig
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
	admin http.Client
}

// StartRelay starts ferry in the relay's namespace and waits until it is ready.
func StartRelay(cfg RelayConfig) (*Relay, error) {
	if cfg.In == (Namespace{}) {
		cfg.In = cfg.Network.Relay
	}
	if !cfg.Addr.IsValid() {
		cfg.Addr = RelayAddr
	}
	path := filepath.Join(cfg.Dir, "ferry.yaml")
	text := fmt.Sprintf(settings, cfg.Addr, filepath.Join(cfg.Dir, stateName))
	for i := range max(cfg.Tokens, 1) {
		text += fmt.Sprintf(credential, i)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(cfg.Dir, "ferry.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	defer log.Close()
	r := &Relay{cfg: cfg, ended: make(chan struct{})}
	r.admin.Transport = &http.Transport{DialContext: cfg.In.Dial, DisableKeepAlives: true}
	r.admin.Timeout = 5 * time.Second
	r.cmd = exec.Command(cfg.Binary, append([]string{"serve", "--config", path}, cfg.Flags...)...)
	r.cmd.Env = append(os.Environ(), cfg.Env...)
	r.cmd.Stderr = log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	begin := time.Now()
	if err := r.start(out); err != nil {
		return nil, err
	}
	r.Started = time.Since(begin)
	return r, nil
}

// start starts the process on a thread in the namespace. The thread lives as
// long as the process, which would be killed with it (Pdeathsig).
func (r *Relay) start(out io.Reader) error {
	started, ready := make(chan error, 1), make(chan struct{})
	onThread(func() {
		err := r.cfg.In.enter()
		if err == nil && r.cfg.Prepare != nil {
			err = r.cfg.Prepare()
		}
		if err == nil {
			err = r.cmd.Start()
		}
		if err == nil && r.cfg.Cap != nil {
			err = r.cfg.Cap.Add(r.cmd.Process.Pid)
		}
		started <- err
		if r.cmd.Process != nil {
			readiness(out, ready)
			// How it ended is in ProcessState.
			_ = r.cmd.Wait()
		}
		close(r.ended)
	})
	if err := <-started; err != nil {
		r.Kill()
		return fmt.Errorf("lab: %w", err)
	}
	select {
	case <-ready:
		return nil
	case <-r.ended:
		return fmt.Errorf("lab: ferry ended: %v: %s", r.cmd.ProcessState, r.Log())
	case <-time.After(startWithin):
		r.Kill()
		return fmt.Errorf("lab: ferry is not ready: %s", r.Log())
	}
}

// readiness reads the output to its end and tells when it says ready.
func readiness(out io.Reader, ready chan<- struct{}) {
	lines := bufio.NewScanner(out)
	for said := false; lines.Scan(); {
		if !said && strings.HasPrefix(lines.Text(), "ready") {
			close(ready)
			said = true
		}
	}
}

// API returns a client of the relay's API that calls from a namespace with the
// n-th token.
func (r *Relay) API(from Namespace, n int) *api.Client {
	return &api.Client{BaseURL: "http://" + r.cfg.Addr.String(), Token: fmt.Sprintf(secret, n), HTTP: &http.Client{
		Transport: &http.Transport{DialContext: from.Dial, MaxIdleConnsPerHost: 8},
		Timeout:   api.DefaultTimeout,
	}}
}

// Log returns the end of what the relay has written, at most 4 KiB.
func (r *Relay) Log() string {
	raw, err := os.ReadFile(filepath.Join(r.cfg.Dir, "ferry.log"))
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-4096):])
}

// Alive reports whether the process runs.
func (r *Relay) Alive() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the process.
func (r *Relay) Signal(s syscall.Signal) error { return r.cmd.Process.Signal(s) }

// Kill ends the process as a crash does and waits for it.
func (r *Relay) Kill() {
	if r.cmd.Process == nil {
		return
	}
	// A process that has ended already is as dead as wanted.
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// Stop ends the process as an operator does. The error says how it ended, if
// not well.
func (r *Relay) Stop() error {
	if !r.Alive() {
		return fmt.Errorf("lab: ferry had ended by itself: %v", r.cmd.ProcessState)
	}
	if err := r.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-r.ended:
	case <-time.After(startWithin):
		r.Kill()
		return errors.New("lab: ferry did not stop")
	}
	if !r.cmd.ProcessState.Success() {
		return fmt.Errorf("lab: ferry ended: %v", r.cmd.ProcessState)
	}
	return nil
}

// StateDir is where the process keeps its state, as it sees it itself.
func (r *Relay) StateDir() string { return filepath.Join(r.cfg.Dir, stateName) }

// Root is the process's root directory, as others reach it: with the file
// systems that only it has.
func (r *Relay) Root() string { return fmt.Sprintf("/proc/%d/root", r.cmd.Process.Pid) }

// LimitFiles bounds how many descriptors the process may have open.
func (r *Relay) LimitFiles(n uint64) error {
	var old unix.Rlimit
	if err := unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	old.Cur = n
	return os.NewSyscallError("prlimit", unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_NOFILE, &old, nil))
}

// RSS returns the resident memory of the process in bytes.
func (r *Relay) RSS() (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	kib, err := field(string(raw), "VmRSS")
	return kib << 10, err
}

// Files returns how many descriptors the process has open.
func (r *Relay) Files() (int, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
	return len(all), err
}

// Metrics returns what the admin page shows, by name with labels.
func (r *Relay) Metrics() (map[string]float64, error) {
	resp, err := r.admin.Get("http://" + adminAddr + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	all := make(map[string]float64)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if v, err := strconv.ParseFloat(lines.Text()[at+1:], 64); err == nil {
			all[lines.Text()[:at]] = v
		}
	}
	return all, lines.Err()
}
