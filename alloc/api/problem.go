package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// problemType is the type of every problem (RFC 9457, 4.2.1): the title is that of the
// HTTP status, and the code identifies the problem.
const problemType = "about:blank"

// Problem is the body of every error answer, as application/problem+json. It is an
// error; use errors.As to get it.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Code is one of the Code constants, or 15000 plus the status.
	Code int `json:"code"`
	// Details names the invalid members; it may be empty.
	Details []Detail `json:"details,omitempty"`
	// RetryAfter is the time to wait before another attempt, from the Retry-After
	// header; zero if there is none.
	RetryAfter time.Duration `json:"-"`
}

// Detail is an invalid member of a request and the reason.
type Detail struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// DetailHost is the key of the detail of a 409 of migrate whose value is the allocation id of
// the host that the match has: join by the code.
const DetailHost = "host"

// NewProblem returns the problem of a status, with the title of that status.
func NewProblem(status, code int, detail string) *Problem {
	return &Problem{
		Type:   problemType,
		Title:  http.StatusText(status),
		Status: status,
		Detail: detail,
		Code:   code,
	}
}

// Error returns title, detail and details in the format of the SDK, then status and
// code.
func (p *Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "api: %s: %s", p.Title, p.Detail)
	for _, d := range p.Details {
		fmt.Fprintf(&b, "; %s: %s", d.Key, d.Value)
	}
	fmt.Fprintf(&b, " (status %d, code %d)", p.Status, p.Code)
	return b.String()
}

// A body that is not a problem, such as that of a proxy, results in a generic one, so
// that callers handle one error type.
func parseProblem(status int, header http.Header, body []byte) *Problem {
	p := &Problem{}
	if err := json.Unmarshal(body, p); err != nil || p.Title == "" || p.Code == 0 {
		p = NewProblem(status, StatusCode(status), "the answer is not a problem document")
	}
	p.Status = status
	p.RetryAfter = parseRetryAfter(header.Get("Retry-After"))
	return p
}

// parseRetryAfter reads a delay in seconds. It ignores dates, because the clock of this
// machine may be wrong.
func parseRetryAfter(s string) time.Duration {
	seconds, err := strconv.Atoi(s)
	if err != nil || seconds < 0 || seconds > 24*60*60 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// The codes of the Relay Allocations API. Every other error has the code [StatusCode]
// of its HTTP status.
const (
	CodeInvalidRequest     = 15001
	CodeInactiveProject    = 15006
	CodeRegionNotFound     = 15007
	CodeAllocationNotFound = 15008
	CodeJoinCodeNotFound   = 15009
	CodeNoSuitableRelay    = 15010
)

// StatusCode returns the code of an error without one of its own, such as 15401 or
// 15429.
func StatusCode(status int) int { return 15000 + status }
