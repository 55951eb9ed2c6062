package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// TestTraceID: the line of a call has the trace id of a valid traceparent, and nothing of any other.
func TestTraceID(t *testing.T) {
	t.Parallel()
	const id = "0af7651916cd43dd8448eb211c80319c"
	const valid = "00-" + id + "-b7ad6b7169203331-01"
	for _, c := range []struct {
		headers []string
		want    any
	}{
		{nil, nil},
		{[]string{valid}, id},
		{[]string{"00-" + id + "-b7ad6b7169203331-00"}, id},
		{[]string{valid, valid}, nil},
		{[]string{"01-" + id + "-b7ad6b7169203331-01"}, nil},
		{[]string{valid + "-00"}, nil},
		{[]string{" " + valid + "x"}, nil},
		{[]string{strings.ToUpper(valid)}, nil},
		{[]string{"00-" + id + "0-b7ad6b7169203331-01"}, nil},
		{[]string{"00-" + id[1:] + "-b7ad6b7169203331-01"}, nil},
		{[]string{"00-" + id[1:] + "\n-b7ad6b7169203331-01"}, nil},
		{[]string{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01"}, nil},
		{[]string{"00-" + id + "-b7ad6b716920333-01"}, nil},
		{[]string{"00-" + id + "-b7ad6b7169203331"}, nil},
		{[]string{"00-" + id + "-b7ad6b7169203331-x1"}, nil},
		{[]string{id}, nil},
		{[]string{""}, nil},
	} {
		var out bytes.Buffer
		x := newFixture(t, Config{Logger: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		r := newRequest(http.MethodGet, "/v1/regions", tokenAnna, "")
		for _, h := range c.headers {
			r.Header.Add("traceparent", h)
		}
		answer := x.do(r)
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, &out)
		}
		if line["traceId"] != c.want || line["requestId"] != answer.Header().Get(headerRequestID) {
			t.Errorf("%q: %s, want %v", c.headers, &out, c.want)
		}
	}
}

// TestTraceIDOfError: an internal error has the trace id at every level of the log.
func TestTraceIDOfError(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	x := newFixture(t, Config{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	x.relay.Fail(errors.New("the relay broke"))
	r := newRequest(http.MethodPost, "/v1/allocate", tokenAnna, `{"maxConnections":4}`)
	r.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	wantStatus(t, x.do(r), http.StatusInternalServerError)
	if !strings.Contains(out.String(), " traceId=0af7651916cd43dd8448eb211c80319c ") {
		t.Errorf("%s", &out)
	}
}
