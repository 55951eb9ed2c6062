package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// Output says how answers are shown.
type Output struct {
	Stdout, Stderr io.Writer
	// Stdin has the answer to a question.
	Stdin io.Reader
	JSON  bool
	CSV   bool // of Usage and PlayerUsage
	// Curl shows the call, and makes none.
	Curl bool
	// Watch shows the answer again after each Every, on a cleared screen where
	// there is one, Times times; 0: until the context ends.
	Watch bool
	Every time.Duration
	Times int
}

// Request is a call of the admin pages, and how its answer is shown.
type Request struct {
	call Call
	ask  func(context.Context, *Client) (any, error)
	show func(Output, any) error
}

// requestOf makes a request whose answer is a T.
func requestOf[T any](call Call, show func(Output, *T) error) Request {
	return Request{
		call: call,
		ask: func(ctx context.Context, c *Client) (any, error) {
			answer := new(T)
			return answer, c.Do(ctx, call, answer)
		},
		show: func(o Output, v any) error { return show(o, v.(*T)) },
	}
}

// tableOf makes a request whose answer is a T, of which nothing goes to Stderr.
func tableOf[T any](call Call, table func(io.Writer, *T) error) Request {
	return requestOf(call, rows(table))
}

// listing makes a request of a listing at a node; empty: of the process that is asked.
func listing[Q, A any](l *operator.List[Q, A], node string, q Q, show func(Output, *A) error) Request {
	return requestOf(Call{Path: nodePath(node) + l.PathOf(q), Query: operator.Values(q)}, show)
}

// rows shows an answer as a table.
func rows[A any](table func(io.Writer, *A) error) func(Output, *A) error {
	return func(o Output, v *A) error { return table(o.Stdout, v) }
}

// Show makes a request and shows the answer, once or again and again.
func (c *Client) Show(ctx context.Context, o Output, r Request) error {
	if o.Curl {
		_, err := fmt.Fprintln(o.Stdout, c.Curl(r.call))
		return err
	}
	if !o.Watch {
		return c.showOnce(ctx, o, r)
	}
	s := screen{w: o.Stdout, clear: terminal(o.Stdout)}
	return s.repeat(ctx, o.Every, o.Times, func(w io.Writer) error {
		o.Stdout = w
		return c.showOnce(ctx, o, r)
	})
}

func (c *Client) showOnce(ctx context.Context, o Output, r Request) error {
	answer, err := r.ask(ctx, c)
	if err != nil {
		return err
	}
	o.Stdout = printable.NewWriter(o.Stdout)
	if !o.JSON {
		return r.show(o, answer)
	}
	e := json.NewEncoder(o.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(answer)
}
