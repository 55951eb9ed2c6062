package blackbox

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// binary is built once for all tests.
var binary string

func TestMain(m *testing.M) {
	testkit.DefaultParallel(6)
	dir, err := os.MkdirTemp("", "ferry")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "ferry")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/ferryrelay/ferry/cmd/ferry").CombinedOutput(); err != nil {
		fmt.Printf("%s%v\n", out, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// ferry is a running `ferry dev` or `ferry serve`.
type ferry struct {
	t     *testing.T
	api   string
	admin string
	udp   netip.AddrPort
	token string
	http  *http.Client // what is asked with
	log   text
	done  chan error // how it ended, once
	cmd   *exec.Cmd
}

// text is a log that is read while it is written.
type text = testkit.LogBuffer

// dev starts `ferry dev` on free ports and stops it when the test ends.
func dev(t *testing.T, args ...string) *ferry {
	t.Helper()
	f := launch(t, append([]string{"dev"}, args...)...)
	t.Cleanup(f.stop)
	return f
}

// launch starts ferry on free ports and waits until it is ready. It is killed
// when the test ends, if it is still there.
func launch(t *testing.T, args ...string) *ferry {
	t.Helper()
	return launchBy(t, nil, args...)
}

// launchBy is launch by another program, which gets the path of ferry and its arguments.
func launchBy(t *testing.T, program []string, args ...string) *ferry {
	t.Helper()
	for _, flag := range []string{"--udp", "--http", "--admin"} {
		if !slices.Contains(args, flag) {
			args = append(args, flag, "127.0.0.1:0")
		}
	}
	line := slices.Concat(program, []string{binary}, args)
	f := &ferry{t: t, http: http.DefaultClient, cmd: exec.Command(line[0], line[1:]...), done: make(chan error, 1)}
	f.cmd.Stderr = &f.log
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cmd.Process.Kill() }) // It has ended, if all is well.
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "ready") {
				ready <- lines.Text()
			}
		}
		f.done <- f.cmd.Wait()
	}()
	select {
	case line := <-ready:
		f.parse(line)
	case <-time.After(20 * time.Second):
		t.Fatal("no ready line; log:\n", f.log.String())
	}
	return f
}

func (f *ferry) parse(line string) {
	for _, field := range strings.Fields(line) {
		if v, ok := strings.CutPrefix(field, "udp="); ok {
			f.udp = netip.MustParseAddrPort(v)
		}
		if v, ok := strings.CutPrefix(field, "http="); ok {
			f.api = v
		}
		if v, ok := strings.CutPrefix(field, "admin="); ok {
			f.admin = v
		}
	}
	if f.api == "" || !f.udp.IsValid() {
		f.t.Fatalf("cannot read %q", line)
	}
}

// stop ends the process as an operator would.
func (f *ferry) stop() {
	f.signal(syscall.SIGTERM)
	f.exits()
}

func (f *ferry) signal(s syscall.Signal) {
	f.t.Helper()
	if err := f.cmd.Process.Signal(s); err != nil {
		f.t.Fatal(err)
	}
}

// exits waits for the end of the process, which has to be a good one.
func (f *ferry) exits() {
	f.t.Helper()
	select {
	case err := <-f.done:
		if err != nil {
			f.t.Errorf("ferry ended with %v; log:\n%s", err, f.log.String())
		}
	case <-time.After(20 * time.Second):
		f.t.Fatal("ferry does not stop; log:\n", f.log.String())
	}
}

// post sends JSON and returns the status and the decoded answer.
func (f *ferry) post(path, body string) (int, map[string]any) {
	f.t.Helper()
	status, raw := f.ask("POST", f.api+path, body)
	answer := map[string]any{}
	if err := json.Unmarshal(raw, &answer); err != nil {
		f.t.Fatalf("%s answered %q: %v", path, raw, err)
	}
	return status, answer
}

// ask sends a request and returns the status and the body of the answer.
func (f *ferry) ask(method, url, body string) (int, []byte) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if f.token != "" {
		req.Header.Set("Authorization", "Bearer "+f.token)
	}
	resp, err := f.http.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, raw
}

// allocation is what the API calls so, as far as a client needs it.
type allocation struct {
	AllocationID       string
	AllocationIDBytes  []byte
	Key                []byte
	ConnectionData     []byte
	HostConnectionData []byte
	ServerEndpoints    []struct {
		ConnectionType, Host string
		Port                 uint16
	}
}

func (f *ferry) allocation(status, want int, answer map[string]any) allocation {
	f.t.Helper()
	if status != want {
		f.t.Fatalf("status %d, want %d: %v", status, want, answer)
	}
	raw, _ := json.Marshal(answer["data"].(map[string]any)["allocation"])
	var a allocation
	if err := json.Unmarshal(raw, &a); err != nil {
		f.t.Fatal(err)
	}
	return a
}

// allocate makes a host's allocation and its join code.
func (f *ferry) allocate(max int) (a allocation, code string) {
	f.t.Helper()
	status, answer := f.post("/v1/allocate", fmt.Sprintf(`{"maxConnections":%d}`, max))
	a = f.allocation(status, 201, answer)
	status, answer = f.post("/v1/joincode", fmt.Sprintf(`{"allocationId":%q}`, a.AllocationID))
	if status != 201 {
		f.t.Fatalf("joincode: %d %v", status, answer)
	}
	return a, answer["data"].(map[string]any)["joinCode"].(string)
}

func (f *ferry) join(code string) allocation {
	f.t.Helper()
	status, answer := f.post("/v1/join", fmt.Sprintf(`{"joinCode":%q}`, code))
	return f.allocation(status, 200, answer)
}

// endpoint returns where a player of that connection type is sent.
func (a allocation) endpoint(t *testing.T, connectionType string) netip.AddrPort {
	t.Helper()
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType == connectionType {
			return netip.AddrPortFrom(netip.MustParseAddr(e.Host), e.Port)
		}
	}
	t.Fatalf("no endpoint for %s in %+v", connectionType, a.ServerEndpoints)
	return netip.AddrPort{}
}

func (a allocation) credentials(t *testing.T) enginetest.Credentials {
	t.Helper()
	c := enginetest.Credentials{
		ID: [16]byte(a.AllocationIDBytes), Key: a.Key, ConnectionData: a.ConnectionData, HostConnectionData: a.HostConnectionData,
	}
	c.Relay = a.endpoint(t, "udp")
	if c.HostConnectionData == nil {
		c.HostConnectionData = a.ConnectionData
	}
	if len(c.Key) != 64 || len(c.ConnectionData) != 255 || len(c.HostConnectionData) != 255 {
		t.Fatalf("an allocation that no client could use: %+v", a)
	}
	return c
}
