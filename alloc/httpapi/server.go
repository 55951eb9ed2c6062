package httpapi

import (
	"net"
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/internal/net/connlimit"
)

// The limits of [NewServer]: a client that sends or reads slowly must not hold a
// connection for long.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 10 * time.Second
	idleTimeout       = 30 * time.Second
	maxHeaderBytes    = 8 << 10
)

// NewServer returns an HTTP server for h with the timeouts and the header limit that a
// public server needs. The caller sets up listener, TLS and error log. A connection of a
// [LimitListener] that is upgraded, such as to WebSocket, no longer counts for its limits.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       withConn,
		ConnState: func(conn net.Conn, s http.ConnState) {
			if s == http.StateHijacked {
				connlimit.Release(conn)
			}
		},
	}
}
