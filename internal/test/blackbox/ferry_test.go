package blackbox

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

var binary string

func TestMain(m *testing.M) {
	testkit.DefaultParallel(10)
	var err error
	if binary, err = ferrytest.Build(); err != nil {
		panic(err)
	}
	ferrytest.Main(m)
}

type ferry struct {
	*ferrytest.Process
	t     *testing.T
	api   string
	admin string
	udp   netip.AddrPort
	token string
	http  *http.Client // what is asked with
}

type text = testkit.LogBuffer

func dev(t *testing.T, args ...string) *ferry {
	t.Helper()
	f := launch(t, append([]string{"dev"}, args...)...)
	t.Cleanup(f.Stop)
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
	p := ferrytest.Start(t, exec.Command(line[0], line[1:]...))
	return &ferry{p, t, p.API, p.Admin, p.UDP, "", http.DefaultClient}
}

func (f *ferry) post(path, body string) (int, map[string]any) {
	f.t.Helper()
	status, raw := f.ask("POST", f.api+path, body)
	answer := map[string]any{}
	if err := json.Unmarshal(raw, &answer); err != nil {
		f.t.Fatalf("%s answered %q: %v", path, raw, err)
	}
	return status, answer
}

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
