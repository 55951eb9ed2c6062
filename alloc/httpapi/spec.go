package httpapi

import (
	_ "embed"
	"net/http"
	"strconv"
)

// spec describes the API as OpenAPI 3.0. The tests check it against what the
// handlers answer.
//
//go:embed openapi.yaml
var spec string

// Spec returns the API's OpenAPI 3.0 description, a YAML document.
func Spec() string { return spec }

func writeSpec(w http.ResponseWriter) int {
	h := w.Header()
	h.Set("Content-Type", typeYAML)
	h.Set("Content-Length", strconv.Itoa(len(spec)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte(spec))
	return http.StatusOK
}
