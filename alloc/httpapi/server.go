package httpapi

import (
	"net/http"
	"time"
)

// The limits of [NewServer]: a caller that sends or reads slowly must not hold
// a connection for long (reliability-security.md 4.8, H3).
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 10 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 8 << 10
)

// NewServer returns an HTTP server for h with the time-outs and the header
// limit that a server on the Internet needs. Listening, TLS and the error log
// are the caller's.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
}
