package ctl

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/base/printable"
)

// DefaultURL is where the admin pages are unless the settings say otherwise.
const DefaultURL = "http://127.0.0.1:7778"

const (
	// callWithin bounds one request; the pages give the relay 5 s.
	callWithin = 15 * time.Second
	// upgradeWithin is for a new process that reads a million allocations.
	upgradeWithin = time.Minute
	// maxAnswer bounds an answer in bytes: a page of a thousand allocations has
	// half a megabyte.
	maxAnswer = 16 << 20
)

// Client asks the admin pages of one process. Its methods may be called from
// one goroutine at a time.
type Client struct {
	base      *url.URL
	flag      string
	token     string
	tokenFile string
	http      *http.Client
}

// Config says where the pages are.
type Config struct {
	// URL of the pages: scheme, host and port.
	URL string
	// Flag is the flag with the URL, for errors. Empty: --admin.
	Flag string
	// TokenFile holds the token that they ask for. Empty: none.
	TokenFile string
	// CAFile holds certificates of authorities to trust besides the system's,
	// for pages over TLS. Empty: none.
	CAFile string
}

// New checks the configuration and reads its files. It connects nowhere.
func New(cfg Config) (*Client, error) {
	cfg.Flag = cmp.Or(cfg.Flag, "--admin")
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" ||
		strings.Trim(base.Path, "/") != "" || base.RawQuery != "" || base.Fragment != "" || base.User != nil {
		return nil, fmt.Errorf("%s: %q is not the URL of admin pages, such as %s", cfg.Flag, cfg.URL, DefaultURL)
	}
	base.Path = ""
	c := &Client{base: base, flag: cfg.Flag, tokenFile: cfg.TokenFile}
	if cfg.TokenFile != "" {
		text, err := os.ReadFile(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		if c.token, err = keyfile.DecodeSecret(text); err != nil {
			return nil, fmt.Errorf("--token-file: %s %w", cfg.TokenFile, err)
		}
	}
	secure, err := Trust(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSClientConfig: secure},
		// The pages never redirect, and the token must not go anywhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Trust returns a configuration that trusts the authorities in a file (PEM) besides those of
// the system, nil without a file.
func Trust(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca: %s holds no certificate in PEM", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// Close frees the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call is one request.
type Call struct {
	Method string // empty: GET
	Path   string // escaped
	Query  url.Values
	Body   []byte        // JSON; nil: none
	Within time.Duration // how long it may take; 0: callWithin
}

func (c *Client) url(call Call) string {
	u := *c.base
	return strings.TrimSuffix(u.String(), "/") + call.target()
}

func (call Call) target() string {
	if len(call.Query) == 0 {
		return call.Path
	}
	return call.Path + "?" + call.Query.Encode()
}

// Curl returns the line of a shell that makes the call.
func (c *Client) Curl(call Call) string {
	line := "curl -sS --fail-with-body"
	if call.Method != "" {
		line += " -X " + call.Method
	}
	if c.tokenFile != "" {
		line += ` -H "Authorization: Bearer $(cat ` + quote(c.tokenFile) + `)"`
	}
	return line + " " + quote(c.url(call))
}

// quote makes one word of a text for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Do makes the call and decodes the answer.
func (c *Client) Do(ctx context.Context, call Call, into any) error {
	text, err := c.Text(ctx, call)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%s%s: this does not look like the admin pages of ferry: %w", c.base, call.Path, err)
	}
	return nil
}

// Text makes the call and returns the answer.
func (c *Client) Text(ctx context.Context, call Call) (text string, err error) {
	err = c.receive(ctx, call, func(body io.Reader) error {
		b, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
		if err != nil {
			return c.explain(ctx, err)
		}
		if len(b) > maxAnswer {
			return fmt.Errorf("%s: the answer is larger than %d bytes", c.base, maxAnswer)
		}
		text = string(b)
		return nil
	})
	return text, err
}

func (c *Client) receive(ctx context.Context, call Call, read func(io.Reader) error) error {
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(call.Within, callWithin))
	defer cancel()
	r, err := http.NewRequestWithContext(bounded, call.Method, c.url(call), bytes.NewReader(call.Body))
	if err != nil {
		return err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return c.explain(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return read(res.Body)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return c.explain(ctx, err)
	}
	return c.refused(call, res.StatusCode, strings.TrimSpace(string(text)))
}

// explain says what to look at when there was no answer.
func (c *Client) explain(ctx context.Context, err error) error {
	var timeout net.Error
	var unknown x509.UnknownAuthorityError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf(`nothing listens at %s.
Is ferry running on that machine? It prints its admin address when it starts ("listening admin ..."):
give it as %s http://HOST:PORT`, c.base, c.flag)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s: its certificate is of an authority that this machine does not know: give that one's as --ca FILE (%w)", c.base, err)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s: it speaks plain HTTP: give --admin http://%s", c.base, c.base.Host)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s did not answer in time: is that the admin address, and does a firewall let you through? (%w)", c.base, err)
	}
	return err
}

// refused says what a status means where the text does not.
func (c *Client) refused(call Call, status int, text string) error {
	for _, inside := range []string{"admin: ", "engine: ", "alloc: "} {
		text = strings.TrimPrefix(text, inside) // Which package says so is nothing to an operator.
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = printable.Line(lines[i])
	}
	text = strings.Join(lines, "\n")
	if len(text) > 2000 {
		text = text[:2000] + "…"
	}
	switch {
	case status == http.StatusUnauthorized && c.tokenFile == "":
		return fmt.Errorf("%s asks for a token: give the file that the setting admin_token_file names as --token-file", c.base)
	case status == http.StatusUnauthorized:
		return fmt.Errorf("%s does not take the token in %s: is it that of admin_token_file?", c.base, c.tokenFile)
	case status == http.StatusBadRequest && strings.Contains(text, "HTTP request to an HTTPS server"):
		return fmt.Errorf("%s: it speaks TLS: give --admin https://%s", c.base, c.base.Host)
	case status == http.StatusNotFound && strings.HasPrefix(text, "404"):
		return fmt.Errorf("%s has no page %s: is this the admin address (setting admin) of ferry, and is that one as new as this?", c.base, call.Path)
	}
	return fmt.Errorf("%s (status %d)", text, status)
}
