package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

// headerRequestID names the request, as meta.requestId does.
const headerRequestID = "X-Request-Id"

// The media types of answers.
const (
	typeJSON    = "application/json"
	typeProblem = "application/problem+json"
	typeYAML    = "application/yaml"
)

// writeJSON writes an answer and returns its status. An error of writing means
// that the caller has gone, so there is nobody to tell.
func writeJSON(w http.ResponseWriter, status int, v any) int {
	return write(w, status, typeJSON, v)
}

// writeProblem writes an error with the headers that go with it.
func writeProblem(w http.ResponseWriter, p *api.Problem) int {
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(ceilSeconds(p.RetryAfter), 10))
	}
	return write(w, p.Status, typeProblem, p)
}

func write(w http.ResponseWriter, status int, mediaType string, v any) int {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
	return status
}

// ceilSeconds rounds up, so that who waits as told is not too early.
func ceilSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
