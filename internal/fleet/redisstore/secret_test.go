package redisstore

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestPassword(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	server := redistest.Start(t, "--requirepass", secret)
	_, host, _ := strings.Cut(server.URL, "//")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for name, c := range map[string]Config{
		"URL":          {URL: "redis://:" + secret + "@" + host},
		"user":         {URL: "redis://default:" + secret + "@" + host + "/5"},
		"Config":       {URL: "redis://" + host, Password: secret},
		"none":         {URL: "redis://" + host},
		"wrong":        {URL: "redis://:hunter3@" + host},
		"unknown user": {URL: "redis://somebody:" + secret + "@" + host},
	} {
		c.Timeout, c.Logger = testTimeout, logger
		s := open(t, c)
		good := name == "URL" || name == "user" || name == "Config"
		for range failuresAlone + 1 {
			err := s.Ping(t.Context())
			if good != (err == nil) || err != nil && !unavailable(err) {
				t.Errorf("%s: %v", name, err)
			}
			if err != nil && strings.Contains(err.Error(), "hunter") {
				t.Errorf("%s: the error tells the secret: %v", name, err)
			}
		}
	}
	if !strings.Contains(log.String(), "does not answer") || strings.Contains(log.String(), "hunter") {
		t.Errorf("logged: %s", log.String())
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	self := testkit.SelfSigned(t)
	cert, key := self.WriteFiles(t, t.TempDir())
	roots := self.Pool()
	server := redistest.Start(t)
	port := tlsPort(t, server, cert, key)
	url := "rediss://127.0.0.1:" + port
	s := open(t, Config{URL: url, TLS: &tls.Config{RootCAs: roots}, Timeout: testTimeout})
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]Config{
		"an unknown certificate": {URL: url},
		"another name":           {URL: url, TLS: &tls.Config{RootCAs: roots, ServerName: "store.example"}},
		"no TLS":                 {URL: "redis://127.0.0.1:" + port},
	} {
		c.Timeout = testTimeout
		if err := open(t, c).Ping(t.Context()); !unavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func tlsPort(t *testing.T, server *redistest.Server, cert, key string) string {
	t.Helper()
	files := "tls-cert-file " + cert + " tls-key-file " + key + " tls-ca-cert-file " + cert + " tls-auth-clients no"
	if got := server.Do("CONFIG SET " + files); got != "+OK" {
		t.Fatalf("CONFIG SET %s: %s", files, got)
	}
	var port string
	testkit.NoProblemWithin(t, 30*time.Second, "the server has a port for TLS", func() string { // The one that was free may have been taken.
		port = testkit.FreePort(t)
		return strings.TrimPrefix(server.Do("CONFIG SET tls-port "+port), "+OK")
	})
	return port
}
