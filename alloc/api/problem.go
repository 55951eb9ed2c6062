package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ProblemType is the type of every problem: the title is that of the HTTP
// status and the code says the rest (RFC 9457, 4.2.1).
const ProblemType = "about:blank"

// Problem is the body of every error, as application/problem+json. It is an
// error itself; find it with errors.As.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Code is one of the Code constants, or 15000 plus the status.
	Code int `json:"code"`
	// Details name the members that were wrong; it may be empty.
	Details []Detail `json:"details,omitempty"`
	// RetryAfter is how long to wait before another attempt, from the header
	// of that name; zero when the server did not say.
	RetryAfter time.Duration `json:"-"`
}

// Detail is one remark of a [Problem]: the member in question and what is
// wrong with it.
type Detail struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// NewProblem returns the problem of a status, with the title of that status.
func NewProblem(status, code int, detail string) *Problem {
	return &Problem{
		Type:   ProblemType,
		Title:  http.StatusText(status),
		Status: status,
		Detail: detail,
		Code:   code,
	}
}

// Error returns title, detail and details in the manner of the SDK, then the
// status and the code.
func (p *Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "api: %s: %s", p.Title, p.Detail)
	for _, d := range p.Details {
		fmt.Fprintf(&b, "; %s: %s", d.Key, d.Value)
	}
	fmt.Fprintf(&b, " (status %d, code %d)", p.Status, p.Code)
	return b.String()
}

// parseProblem reads the body of an error. A body that is no problem, as that
// of a proxy between, still becomes one, so that callers have one error to
// look for.
func parseProblem(status int, header http.Header, body []byte) *Problem {
	p := &Problem{}
	if err := json.Unmarshal(body, p); err != nil || p.Title == "" || p.Code == 0 {
		p = NewProblem(status, StatusCode(status), "the answer is not a problem document")
	}
	p.Status = status
	p.RetryAfter = parseRetryAfter(header.Get("Retry-After"))
	return p
}

// parseRetryAfter reads the delay in seconds; the other form of the header, a
// date, is of no use to a machine whose clock may be wrong.
func parseRetryAfter(s string) time.Duration {
	seconds, err := strconv.Atoi(s)
	if err != nil || seconds < 0 || seconds > 24*60*60 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
