package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxAnswer is how much of an answer of the collector is read, in bytes.
const maxAnswer = 16 << 10

// client sends messages to a collector. One goroutine at a time uses it.
type client struct {
	target   *url.URL
	http     http.Client
	stopping <-chan struct{} // no repetitions once it is closed
}

func newClient(target *url.URL) *client {
	t := &http.Transport{
		MaxIdleConnsPerHost: 1, MaxConnsPerHost: 1, IdleConnTimeout: 30 * time.Second,
		MaxResponseHeaderBytes: maxAnswer, Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	if target.Scheme == "https" {
		t.Proxy = http.ProxyFromEnvironment
	}
	c := &client{target: target}
	c.http.Transport = t
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

func (c *client) close() { c.http.CloseIdleConnections() }

// rejectedError is returned for a message of which the collector has rejected spans.
type rejectedError struct{ spans uint64 }

func (r *rejectedError) Error() string {
	return fmt.Sprintf("the collector has rejected %d spans", r.spans)
}

// send sends a message, and repeats that until ctx ends, Run is stopping or the collector
// accepts or refuses it.
func (c *client) send(ctx context.Context, message []byte) error {
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = z.Write(message) // A buffer returns no error.
	_ = z.Close()
	for pause := retryAfter; ; pause *= 2 {
		again, err := c.post(ctx, body.Bytes())
		if err == nil || !again || !c.wait(ctx, pause) {
			return err
		}
	}
}

// wait waits before a repetition. It reports false if there is to be none.
func (c *client) wait(ctx context.Context, pause time.Duration) bool {
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= pause {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-c.stopping:
	}
	return false
}

// post sends one message. With an error, again reports whether it may be repeated.
func (c *client) post(ctx context.Context, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.target.String(), bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("User-Agent", "ferry")
	resp, err := c.http.Do(req)
	if err != nil {
		if outer, ok := errors.AsType[*url.Error](err); ok {
			err = outer.Err
		}
		return true, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch status := resp.StatusCode; {
	case err != nil:
		return true, err
	case status >= 200 && status < 300:
		if n := rejectedSpans(answer); n > 0 {
			return false, &rejectedError{n}
		}
		return false, nil
	default:
		again := status == http.StatusTooManyRequests || status == http.StatusBadGateway ||
			status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
		return again, fmt.Errorf("the collector answers with status %d", status)
	}
}

// The numbers of the fields ExportTraceServiceResponse.partial_success and
// ExportTracePartialSuccess.rejected_spans.
const (
	fieldPartialSuccess = 1
	fieldRejectedSpans  = 1
)

// rejectedSpans returns how many spans an ExportTraceServiceResponse says were rejected, 0
// for anything else.
func rejectedSpans(answer []byte) uint64 {
	partly, _ := fieldOf(answer, fieldPartialSuccess, protowire.BytesType)
	value, _ := fieldOf(partly, fieldRejectedSpans, protowire.VarintType)
	n, size := protowire.ConsumeVarint(value)
	if size < 0 {
		return 0
	}
	return n
}

// fieldOf returns the content of the first field of a message with that number and type.
func fieldOf(message []byte, number protowire.Number, kind protowire.Type) ([]byte, bool) {
	for len(message) > 0 {
		n, t, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil, false
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, t, message); size < 0 {
			return nil, false
		}
		if n == number && t == kind {
			if kind != protowire.BytesType {
				return message[:size], true
			}
			content, _ := protowire.ConsumeBytes(message)
			return content, true
		}
		message = message[size:]
	}
	return nil, false
}
