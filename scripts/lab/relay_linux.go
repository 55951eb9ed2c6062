package lab

import (
	"bufio"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/alloc/api"
)

const (
	adminAddr = "127.0.0.1:7778" // in the relay's namespace
	stateName = "state"          // of the state directory in RelayConfig.Dir
	// tokenFormat is the API token of the n-th backend.
	tokenFormat = "laboratory-backend-token-0123456789abcdef-%d"
)

// configTemplate is the configuration of `ferry serve`; its arguments are the
// address and the state directory.
const configTemplate = `udp: ["%[1]s"]
http: "%[1]s"
admin: ` + adminAddr + `
trusted_proxies: ["0.0.0.0/0", "::/0"] # no limits by address
state_dir: %[2]s
log_format: json
tokens:
`

// tokenTemplate is appended to configTemplate for each token.
const tokenTemplate = `  - secret: ` + tokenFormat + `
    project: laboratory
    environment: test
    kind: %s
`

// Binary builds ferry into dir and returns its path.
func Binary(dir string) (string, error) {
	path := filepath.Join(dir, "ferry")
	out, err := exec.Command("go", "build", "-o", path, "github.com/ferryrelay/ferry/cmd/ferry").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("lab: go build: %w: %s", err, out)
	}
	return path, os.Chmod(path, 0o755) // The umask may let a group write it, which an upgrade refuses.
}

// RelayConfig describes how to start ferry.
type RelayConfig struct {
	Network *Network
	Binary  string     // path from Binary
	Dir     string     // of configuration, state and log; keeps the state of a previous run
	Flags   []string   // of `ferry serve`, in addition to --config
	Env     []string   // in addition to that of this process
	Cap     *MemoryCap // memory limit; nil: none
	Tokens  int        // number of API tokens; 0: 1
	Players bool       // the API tokens are those of players, not of backends
	In      Namespace  // zero: Network.Relay
	// Prepare is ProcessConfig.Prepare.
	Prepare func() error
	Addr    netip.AddrPort // listening address; zero: RelayAddr
	YAML    string         // settings, in addition to the others of the file
}

// Relay is a running `ferry serve`. StartRelay sets its fields.
type Relay struct {
	*Process
	cfg   RelayConfig
	admin http.Client
}

// StartRelay starts ferry and waits until it is ready.
func StartRelay(cfg RelayConfig) (*Relay, error) {
	if cfg.In == (Namespace{}) {
		cfg.In = cfg.Network.Relay
	}
	if !cfg.Addr.IsValid() {
		cfg.Addr = RelayAddr
	}
	path := filepath.Join(cfg.Dir, "ferry.yaml")
	text := fmt.Sprintf(configTemplate, cfg.Addr, filepath.Join(cfg.Dir, stateName))
	kind := "server"
	if cfg.Players {
		kind = "player"
	}
	for i := range max(cfg.Tokens, 1) {
		text += fmt.Sprintf(tokenTemplate, i, kind)
	}
	if err := os.WriteFile(path, []byte(text+cfg.YAML), 0o600); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	r := &Relay{cfg: cfg}
	r.admin.Transport = &http.Transport{DialContext: cfg.In.Dial, DisableKeepAlives: true}
	r.admin.Timeout = 5 * time.Second
	var err error
	r.Process, err = StartProcess(ProcessConfig{
		In: cfg.In, Path: cfg.Binary, Args: append([]string{"serve", "--config", path}, cfg.Flags...), Env: cfg.Env,
		Log: filepath.Join(cfg.Dir, "ferry.log"), Ready: FerryReady, Cap: cfg.Cap, Prepare: cfg.Prepare,
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// FerryReady reports whether a line of ferry's output says that it is ready.
func FerryReady(line string) bool {
	return strings.HasPrefix(line, "ready") || strings.Contains(line, `"msg":"ready"`)
}

// API returns an API client that dials from a namespace and uses the n-th
// token.
func (r *Relay) API(from Namespace, n int) *api.Client {
	return &api.Client{BaseURL: "http://" + r.cfg.Addr.String(), Token: fmt.Sprintf(tokenFormat, n), HTTP: &http.Client{
		Transport: &http.Transport{DialContext: from.Dial, MaxIdleConnsPerHost: 8},
		Timeout:   api.DefaultTimeout,
	}}
}

// StateDir returns the state directory as the process sees it.
func (r *Relay) StateDir() string { return filepath.Join(r.cfg.Dir, stateName) }

// Root returns the path of the process's root directory, including its private
// mounts.
func (r *Relay) Root() string { return fmt.Sprintf("/proc/%d/root", r.cmd.Process.Pid) }

// LimitFiles sets the soft limit of the process's open file descriptors.
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

// Files returns the number of open file descriptors of the process.
func (r *Relay) Files() (int, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
	return len(all), err
}

// Metrics returns the values of the admin listener's /metrics by name with
// labels.
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
