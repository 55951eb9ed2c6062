package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// answer is one answer of a test server, and the request that it got.
type answer struct {
	status int
	body   string
	header http.Header

	method, path, sent string
	asked              http.Header
}

func (a *answer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.method, a.path, a.sent, a.asked = r.Method, r.URL.Path, string(body), r.Header
	for k, v := range a.header {
		w.Header()[k] = v
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

func serve(t *testing.T, a *answer) *Client {
	t.Helper()
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	return &Client{BaseURL: s.URL + "/", Token: "token-of-the-test"}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func allocationBody(t *testing.T, a Allocation) string {
	t.Helper()
	var body answerBody[allocationData]
	body.Data.Allocation = a
	return encode(t, body)
}

func TestClientSends(t *testing.T) {
	tests := []struct {
		name         string
		status       int
		body         string
		call         func(*Client) error
		method, path string
		sent         string
	}{
		{"allocate", 201, allocationBody(t, hostAllocation()), func(c *Client) error {
			_, err := c.Allocate(t.Context(), AllocateRequest{MaxConnections: 4})
			return err
		}, "POST", "/v1/allocate", `{"maxConnections":4}`},
		{"allocate in a region", 201, allocationBody(t, hostAllocation()), func(c *Client) error {
			_, err := c.Allocate(t.Context(), AllocateRequest{MaxConnections: 4, Region: "local"})
			return err
		}, "POST", "/v1/allocate", `{"maxConnections":4,"region":"local"}`},
		{"joincode", 201, `{"meta":{},"links":{},"data":{"joinCode":"6789BC"}}`, func(c *Client) error {
			_, err := c.JoinCode(t.Context(), "id")
			return err
		}, "POST", "/v1/joincode", `{"allocationId":"id"}`},
		{"join", 200, allocationBody(t, joinerAllocation()), func(c *Client) error {
			_, err := c.Join(t.Context(), "6789BC")
			return err
		}, "POST", "/v1/join", `{"joinCode":"6789BC"}`},
		{"regions", 200, `{"data":{"regions":[]}}`, func(c *Client) error {
			_, err := c.Regions(t.Context())
			return err
		}, "GET", "/v1/regions", ``},
		{"choose a region", 200, `{"data":{"region":"eu"}}`, func(c *Client) error {
			_, err := c.ChooseRegion(t.Context(), ChooseRegionRequest{
				MaxConnections: 4, Players: []PlayerMeasurements{{Player: "ann", Regions: []Measurement{{Region: "eu", RTT: 20.5}}}},
			})
			return err
		}, "POST", "/v1/regions/choose", `{"maxConnections":4,"players":[{"player":"ann","regions":[{"region":"eu","rtt":20.5}]}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &answer{status: tt.status, body: tt.body}
			if err := tt.call(serve(t, a)); err != nil {
				t.Fatal(err)
			}
			if a.method != tt.method || a.path != tt.path || a.sent != tt.sent {
				t.Errorf("sent %s %s %s", a.method, a.path, a.sent)
			}
			if got := a.asked.Get("Authorization"); got != "Bearer token-of-the-test" {
				t.Errorf("Authorization = %q", got)
			}
			if got := a.asked.Get("Content-Type"); (got == "application/json") != (tt.sent != "") {
				t.Errorf("Content-Type = %q", got)
			}
		})
	}
}

func TestClientReturns(t *testing.T) {
	c := serve(t, &answer{status: 201, body: allocationBody(t, hostAllocation())})
	if got, err := c.Allocate(t.Context(), AllocateRequest{MaxConnections: 1}); err != nil || got.Region != "local" || len(got.Key) != 64 {
		t.Errorf("Allocate = %+v, %v", got, err)
	}
	for _, status := range []int{200, 201} {
		c = serve(t, &answer{status: status, body: `{"data":{"joinCode":"6789BC"}}`})
		if got, err := c.JoinCode(t.Context(), "id"); err != nil || got != "6789BC" {
			t.Errorf("JoinCode, status %d = %q, %v", status, got, err)
		}
	}
	c = serve(t, &answer{status: 200, body: `{"data":{"regions":[{"id":"a","description":"A"}]}}`})
	if got, err := c.Regions(t.Context()); err != nil || len(got) != 1 || got[0] != (Region{ID: "a", Description: "A"}) {
		t.Errorf("Regions = %v, %v", got, err)
	}
}

func TestClientRefusesStrangeAnswers(t *testing.T) {
	allocate := func(c *Client) error {
		_, err := c.Allocate(context.Background(), AllocateRequest{MaxConnections: 1})
		return err
	}
	join := func(c *Client) error { _, err := c.Join(context.Background(), "6789BC"); return err }
	joinCode := func(c *Client) error { _, err := c.JoinCode(context.Background(), "id"); return err }
	regions := func(c *Client) error { _, err := c.Regions(context.Background()); return err }
	host, joiner := allocationBody(t, hostAllocation()), allocationBody(t, joinerAllocation())
	tests := []struct {
		name   string
		status int
		body   string
		call   func(*Client) error
	}{
		{"allocate with 200", 200, host, allocate},
		{"allocate without an allocation", 201, `{"meta":{},"data":{}}`, allocate},
		{"allocate with junk", 201, `junk`, allocate},
		{"allocate with two bodies", 201, host + host, allocate},
		{"allocate with bad base64", 201, `{"data":{"allocation":{"key":"%%"}}}`, allocate},
		{"join with 201", 201, joiner, join},
		{"join without host data", 200, host, join},
		{"join without an allocation", 200, `{}`, join},
		{"joincode with 204", 204, ``, joinCode},
		{"joincode without a code", 201, `{"data":{}}`, joinCode},
		{"regions with 201", 201, `{"data":{"regions":[]}}`, regions},
		{"regions without regions", 200, `{"data":{}}`, regions},
		{"choose a region without one", 200, `{"data":{}}`, func(c *Client) error {
			_, err := c.ChooseRegion(context.Background(), ChooseRegionRequest{})
			return err
		}},
		{"redirected", 302, ``, regions},
		{"too long", 200, `{"data":{"regions":[]}}` + strings.Repeat(" ", maxAnswer), regions},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &answer{status: tt.status, body: tt.body}
			if tt.status == 302 {
				a.header = http.Header{"Location": {"/elsewhere"}}
			}
			err := tt.call(serve(t, a))
			if !errors.Is(err, ErrAnswer) {
				t.Errorf("error = %v, want ErrAnswer", err)
			}
			if a.path == "/elsewhere" {
				t.Error("followed a redirection with the token")
			}
		})
	}
}

func TestClientProblem(t *testing.T) {
	body := encode(t, NewProblem(404, CodeJoinCodeNotFound, "join code not found"))
	c := serve(t, &answer{status: 404, body: body})
	_, err := c.Join(t.Context(), "6789BC")
	var p *Problem
	if !errors.As(err, &p) || p.Code != CodeJoinCodeNotFound || p.Title != "Not Found" {
		t.Fatalf("error = %v, want a problem", err)
	}
	c = serve(t, &answer{status: 429, body: "slow down", header: http.Header{"Retry-After": {"2"}}})
	_, err = c.Join(t.Context(), "6789BC")
	if !errors.As(err, &p) || p.Code != 15429 || p.RetryAfter != 2*time.Second {
		t.Fatalf("error = %v, want a problem with 15429", err)
	}
}

func TestClientTransportError(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	c := &Client{BaseURL: s.URL, Token: "canary-token"}
	_, err := c.Regions(t.Context())
	if err == nil || strings.Contains(err.Error(), "canary-token") {
		t.Errorf("error = %v, want one without the token", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = c.Regions(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
	for _, base := range []string{"", "ftp://host", "http://[::1", "relay.example.org"} {
		c = &Client{BaseURL: base}
		if _, err = c.Regions(t.Context()); err == nil {
			t.Errorf("BaseURL %q: no error", base)
		}
	}
	c = &Client{BaseURL: s.URL, Token: "canary-token\nX: y"}
	if _, err = c.Regions(t.Context()); err == nil || strings.Contains(err.Error(), "canary-token") {
		t.Errorf("error = %v, want one without the token", err)
	}
}
