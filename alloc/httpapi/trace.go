package httpapi

import (
	"log/slog"
	"net/http"
	"strings"
)

// headerTrace names the trace of the caller, as W3C Trace Context defines it.
const headerTrace = "Traceparent"

// traceOf returns the id of the caller's trace as an attribute of the log, or the zero Attr, which
// handlers of slog ignore. Any caller may send the header, so all of it must have the form of version 00.
func traceOf(h http.Header) slog.Attr {
	values := h.Values(headerTrace)
	if len(values) != 1 {
		return slog.Attr{}
	}
	parts := strings.Split(values[0], "-")
	if len(parts) != 4 || parts[0] != "00" || !isLowerHex(parts[1], 32) || !isLowerHex(parts[2], 16) || !isLowerHex(parts[3], 2) {
		return slog.Attr{}
	}
	if strings.Trim(parts[1], "0") == "" {
		return slog.Attr{}
	}
	return slog.String("traceId", parts[1])
}

func isLowerHex(text string, digits int) bool {
	return len(text) == digits && strings.Trim(text, "0123456789abcdef") == ""
}
