package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// DefaultTimeout is the timeout of a call, the same as in the SDK.
const DefaultTimeout = 10 * time.Second

// maxAnswer is the size in bytes of the largest answer that a [Client] reads.
const maxAnswer = 64 << 10

// Client calls the Relay Allocations API. It has no state and may be used concurrently
// as long as its fields do not change.
//
// An error answer is a [*Problem]; the error about an invalid answer wraps [ErrAnswer];
// errors of the network are wrapped.
type Client struct {
	// BaseURL is the server's address with the scheme, such as
	// "https://relay.example.org:7777", and perhaps a path. A slash at its end is ignored.
	BaseURL string
	// Token is the bearer token. If it is empty, none is sent, which only a server
	// with anonymous callers accepts.
	Token string
	// HTTP makes the calls. Nil means a client with a timeout of [DefaultTimeout] that
	// follows no redirects, so that the token is sent to this server only.
	HTTP *http.Client
}

// describe returns the server's address without any password, and no token.
func (c Client) describe() string {
	u, err := url.Parse(c.BaseURL)
	if err != nil {
		return "api.Client"
	}
	return "api.Client(" + u.Redacted() + ")"
}

// Format writes the server's address without any password for every verb, and no token.
func (c Client) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, c.describe()) }

// LogValue returns what Format writes.
func (c Client) LogValue() slog.Value { return slog.StringValue(c.describe()) }

// Allocate reserves an allocation for a host, which binds it within 10 s (by default).
func (c *Client) Allocate(ctx context.Context, r AllocateRequest) (Allocation, error) {
	return c.postAllocation(ctx, "allocate", r, http.StatusCreated)
}

// JoinCode returns the join code of the caller's own allocation, which never
// changes.
func (c *Client) JoinCode(ctx context.Context, allocationID string) (string, error) {
	var out answerBody[joinCodeData]
	in := allocationRequest{AllocationID: allocationID}
	err := c.post(ctx, "/v1/joincode", in, &out, http.StatusCreated, http.StatusOK)
	if err != nil {
		return "", fmt.Errorf("joincode: %w", err)
	}
	if out.Data.JoinCode == "" {
		return "", fmt.Errorf("joincode: %w", missing("joinCode"))
	}
	return out.Data.JoinCode, nil
}

// Join reserves an allocation for a player of the host with this join code.
func (c *Client) Join(ctx context.Context, joinCode string) (Allocation, error) {
	return c.JoinFor(ctx, JoinRequest{JoinCode: joinCode})
}

// JoinFor is Join by a backend that names its player's address or address family.
func (c *Client) JoinFor(ctx context.Context, r JoinRequest) (Allocation, error) {
	a, err := c.postAllocation(ctx, "join", r, http.StatusOK)
	if err == nil && len(a.HostConnectionData) == 0 {
		return Allocation{}, fmt.Errorf("join: %w", missing("hostConnectionData"))
	}
	return a, err
}

// Migrate reserves an allocation with which a player takes the place of its host, which has
// left, under the same join code. A *Problem with status 409 and the detail [DetailHost] names
// the host that there is; without it the player has to wait.
func (c *Client) Migrate(ctx context.Context, r MigrateRequest) (Allocation, error) {
	return c.postAllocation(ctx, "migrate", r, http.StatusCreated)
}

// Leave says that the caller's host leaves, so that its players may take its place at once.
// Call it before the host closes its connections.
func (c *Client) Leave(ctx context.Context, r LeaveRequest) error {
	if err := c.post(ctx, "/v1/leave", r, nil, http.StatusNoContent); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// Regions returns the regions that Allocate accepts.
func (c *Client) Regions(ctx context.Context) ([]Region, error) {
	var out answerBody[regionsData]
	err := c.call(ctx, http.MethodGet, "/v1/regions", nil, &out, http.StatusOK)
	if err != nil {
		return nil, fmt.Errorf("regions: %w", err)
	}
	if out.Data.Regions == nil {
		return nil, fmt.Errorf("regions: %w", missing("regions"))
	}
	return out.Data.Regions, nil
}

// ChooseRegion returns the region that is best for all players of a match by what each has measured,
// with the reason.
func (c *Client) ChooseRegion(ctx context.Context, r ChooseRegionRequest) (ChooseRegionData, error) {
	var out answerBody[ChooseRegionData]
	if err := c.post(ctx, "/v1/regions/choose", r, &out, http.StatusOK); err != nil {
		return ChooseRegionData{}, fmt.Errorf("choose region: %w", err)
	}
	if out.Data.Region == "" {
		return ChooseRegionData{}, fmt.Errorf("choose region: %w", missing("region"))
	}
	return out.Data, nil
}

func (c *Client) postAllocation(ctx context.Context, call string, in any, want int) (Allocation, error) {
	var out answerBody[allocationData]
	err := c.post(ctx, "/v1/"+call, in, &out, want)
	if err == nil {
		err = out.Data.Allocation.Validate()
	}
	if err != nil {
		return Allocation{}, fmt.Errorf("%s: %w", call, err)
	}
	return out.Data.Allocation, nil
}

func (c *Client) post(ctx context.Context, path string, in, out any, want ...int) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("api: encode request: %w", err)
	}
	return c.call(ctx, http.MethodPost, path, body, out, want...)
}

// The answer is empty if out is nil.
func (c *Client) call(ctx context.Context, method, path string, body []byte, out any, want ...int) error {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	res, err := c.client().Do(req)
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := readBounded(res.Body)
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(want, res.StatusCode):
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(answer, out); err != nil {
			return fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		return nil
	case res.StatusCode >= http.StatusBadRequest:
		return parseProblem(res.StatusCode, res.Header, answer)
	}
	return fmt.Errorf("%w: status %d", ErrAnswer, res.StatusCode)
}

func (c *Client) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	base, err := url.Parse(c.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	if (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("api: %q is no address of a server, such as https://relay.example.org:7777", base.Redacted())
	}
	target := strings.TrimRight(c.BaseURL, "/") + path
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	return req, nil
}

func (c *Client) client() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return &http.Client{
		Timeout: DefaultTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

func readBounded(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("api: read answer: %w", err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrAnswer, maxAnswer)
	}
	return body, nil
}
