package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// answers is an API that gives one answer after the other, of the call that each names.
type answers struct {
	t    *testing.T
	left []apiAnswer
}

type apiAnswer struct {
	call    string // the last part of the path
	status  int
	details []api.Detail
	code    int // of the problem; 0: that of the status
	// noEndpoint: the allocation has none that the client can use.
	noEndpoint bool
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(a.left) == 0 || !strings.HasSuffix(r.URL.Path, "/"+a.left[0].call) {
		a.t.Errorf("unexpected call of %s with %d answers left", r.URL.Path, len(a.left))
		w.WriteHeader(http.StatusTeapot)
		return
	}
	next := a.left[0]
	a.left = a.left[1:]
	w.Header().Set("Content-Type", "application/json")
	if next.status >= 400 {
		p := api.NewProblem(next.status, api.StatusCode(next.status), "refused")
		if p.Details = next.details; next.code != 0 {
			p.Code = next.code
		}
		w.WriteHeader(next.status)
		_ = json.NewEncoder(w).Encode(p)
		return
	}
	allocation := api.Allocation{
		AllocationID: proto.AllocationID{9}.String(), AllocationIDBytes: make([]byte, 16), Key: make([]byte, 64),
		ConnectionData: []byte{1}, Region: "home",
		ServerEndpoints: []api.ServerEndpoint{{ConnectionType: "udp", Network: "udp", Host: "127.0.0.1", Port: 7777}},
	}
	allocation.AllocationIDBytes[0] = 9
	if next.noEndpoint {
		allocation.ServerEndpoints[0].Port = 0
	}
	if next.call == "join" {
		allocation.HostConnectionData = []byte{2}
	}
	w.WriteHeader(next.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"allocation": allocation}})
}

// TestMigrateCalls: what Migrate asks after each answer, and what it returns.
func TestMigrateCalls(t *testing.T) {
	t.Parallel()
	ticket := client.Ticket{Server: netip.MustParseAddrPort("127.0.0.1:7777"), ID: proto.AllocationID{1}, ConnectionData: []byte{1},
		HostConnectionData: make([]byte, 255)}
	waits := apiAnswer{call: "migrate", status: 409}
	moved := apiAnswer{call: "migrate", status: 409, details: []api.Detail{{Key: api.DetailHost, Value: "x"}}}
	unknown := apiAnswer{call: "migrate", status: 404, code: api.CodeAllocationNotFound}
	joined := apiAnswer{call: "join", status: 200}
	for name, c := range map[string]struct {
		answers []apiAnswer
		host    bool
		err     error // nil: a ticket
	}{
		"first":                   {[]apiAnswer{{call: "migrate", status: 201}}, true, nil},
		"after the relay notices": {[]apiAnswer{waits, waits, {call: "migrate", status: 201}}, true, nil},
		"overloaded": {[]apiAnswer{{call: "migrate", status: 503}, {call: "migrate", status: 429}, {call: "migrate", status: 201}},
			true, nil},
		"another is the host":     {[]apiAnswer{moved, joined}, false, nil},
		"another becomes it":      {[]apiAnswer{waits, waits, moved, joined}, false, nil},
		"no endpoint":             {[]apiAnswer{{call: "migrate", status: 201, noEndpoint: true}}, false, api.ErrAnswer},
		"no claim":                {[]apiAnswer{unknown, joined}, false, nil},
		"no claim, and no host":   {[]apiAnswer{unknown, {call: "join", status: 409}, unknown, joined}, false, nil},
		"the new host leaves too": {[]apiAnswer{moved, {call: "join", status: 409}, {call: "migrate", status: 201}}, true, nil},
		"over":                    {[]apiAnswer{{call: "migrate", status: 404, code: api.CodeJoinCodeNotFound}}, false, client.ErrMatchOver},
		"over after all": {[]apiAnswer{unknown, {call: "join", status: 404, code: api.CodeJoinCodeNotFound}}, false,
			client.ErrMatchOver},
		"not permitted": {[]apiAnswer{{call: "migrate", status: 404}}, false, client.ErrMatchOver},
		"refused":       {[]apiAnswer{{call: "migrate", status: 403}}, false, errRefusal},
		"full":          {[]apiAnswer{moved, {call: "join", status: 403}}, false, errRefusal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := &answers{t: t, left: c.answers}
			server := httptest.NewServer(script)
			defer server.Close()
			got, err := client.Migrate(t.Context(), client.MigrationConfig{
				API: &api.Client{BaseURL: server.URL}, Code: "BCDFGH", Ticket: ticket, Retry: time.Millisecond,
			})
			if problem := new(api.Problem); c.err == errRefusal && !errors.As(err, &problem) || c.err != errRefusal && !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if c.err == nil && (got.ID != proto.AllocationID{9} || (len(got.HostConnectionData) == 0) != c.host) {
				t.Errorf("ticket %+v", got)
			}
			if len(script.left) != 0 {
				t.Errorf("%d calls were not made", len(script.left))
			}
		})
	}
}

var errRefusal = errors.New("a problem")

// TestMigrateConfig: what Migrate refuses at once, and that it ends with its context.
func TestMigrateConfig(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	good := client.MigrationConfig{
		API: &api.Client{BaseURL: server.URL}, Code: "BCDFGH",
		Ticket: client.Ticket{Server: netip.MustParseAddrPort("127.0.0.1:7777"), ID: proto.AllocationID{1}, ConnectionData: []byte{1},
			HostConnectionData: make([]byte, 255)},
	}
	for name, change := range map[string]func(*client.MigrationConfig){
		"no API":       func(c *client.MigrationConfig) { c.API = nil },
		"no code":      func(c *client.MigrationConfig) { c.Code = "" },
		"a host":       func(c *client.MigrationConfig) { c.Ticket.HostConnectionData = nil },
		"no ticket":    func(c *client.MigrationConfig) { c.Ticket.ID = proto.AllocationID{} },
		"negative":     func(c *client.MigrationConfig) { c.Retry = -1 },
		"before its 0": func(c *client.MigrationConfig) { c.Delay = -1 },
	} {
		c := good
		change(&c)
		if _, err := client.Migrate(t.Context(), c); !errors.Is(err, client.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, delay := range []time.Duration{0, time.Hour} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		good.Delay = delay
		if _, err := client.Migrate(ctx, good); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of its context: %v", err)
		}
	}
}
