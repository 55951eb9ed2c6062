package api

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

func TestProblemJSON(t *testing.T) {
	const want = `{"type":"about:blank","title":"Not Found","status":404,` +
		`"detail":"join code not found","code":15009}`
	got, err := json.Marshal(NewProblem(http.StatusNotFound, CodeJoinCodeNotFound, "join code not found"))
	if err != nil || string(got) != want {
		t.Fatalf("Marshal = %s, %v\nwant      %s", got, err, want)
	}
}

func TestProblemError(t *testing.T) {
	p := NewProblem(400, CodeInvalidRequest, "invalid request")
	p.Details = []Detail{{Key: "maxConnections", Value: "out of range"}}
	const want = "api: Bad Request: invalid request; maxConnections: out of range (status 400, code 15001)"
	if p.Error() != want {
		t.Errorf("Error = %q, want %q", p.Error(), want)
	}
}

func TestStatusCode(t *testing.T) {
	for status, want := range map[int]int{401: 15401, 429: 15429, 503: 15503} {
		if got := StatusCode(status); got != want {
			t.Errorf("StatusCode(%d) = %d, want %d", status, got, want)
		}
	}
}

func TestParseProblem(t *testing.T) {
	tests := []struct {
		name, body string
		code       int
		title      string
	}{
		{"whole", `{"type":"about:blank","title":"Not Found","status":404,"detail":"d","code":15008}`, 15008, "Not Found"},
		{"of a proxy", `<html>Bad Gateway</html>`, 15404, "Not Found"},
		{"empty", ``, 15404, "Not Found"},
		{"no code", `{"type":"about:blank","title":"T","status":404,"detail":"d"}`, 15404, "Not Found"},
		{"wrong types", `{"title":1,"code":"15008"}`, 15404, "Not Found"},
		{"another status", `{"type":"x","title":"T","status":200,"detail":"d","code":15009}`, 15009, "T"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := parseProblem(404, http.Header{"Retry-After": {"7"}}, []byte(tt.body))
			if p.Status != 404 || p.Code != tt.code || p.Title != tt.title || p.Detail == "" {
				t.Errorf("parseProblem = %+v", p)
			}
			if p.RetryAfter != 7*time.Second {
				t.Errorf("RetryAfter = %v", p.RetryAfter)
			}
		})
	}
}

func TestParseRetryAfter(t *testing.T) {
	tests := map[string]time.Duration{
		"": 0, "0": 0, "3": 3 * time.Second, "-1": 0, "1.5": 0, "99999999999": 0,
		"Wed, 21 Oct 2015 07:28:00 GMT": 0,
	}
	for in, want := range tests {
		if got := parseRetryAfter(in); got != want {
			t.Errorf("parseRetryAfter(%q) = %v, want %v", in, got, want)
		}
	}
}
