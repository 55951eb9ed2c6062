//go:build lab && linux

package fleet

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/scripts/lab"
)

// balancer calls the API as through a load balancer: the nodes in turn, another
// node if one refuses connections, and one retry on another node after a server
// error. It is safe for concurrent use.
type balancer struct {
	nodes        []*api.Client
	noRetry      bool // no retries; set before the first call
	stalls       *lab.Stalls
	stallRetries atomic.Uint64 // calls repeated because a processor had stalled
	calls        atomic.Uint64
	retried      atomic.Uint64
}

// newBalancer returns a balancer that dials from a namespace, with up to conns
// idle connections per node.
func newBalancer(from lab.Namespace, conns int, stalls *lab.Stalls) *balancer {
	d := &balancer{stalls: stalls}
	for i := range apiCount {
		d.nodes = append(d.nodes, &api.Client{BaseURL: "http://" + apiAddr(i) + ":7777", Token: token, HTTP: &http.Client{
			Transport: &http.Transport{DialContext: from.Dial, MaxIdleConnsPerHost: conns},
			Timeout:   api.DefaultTimeout,
		}})
	}
	return d
}

func (d *balancer) close() {
	for _, c := range d.nodes {
		c.HTTP.CloseIdleConnections()
	}
}

// isServerFault reports whether a call failed without an answer or with a 5xx
// status, so that another node may succeed.
func isServerFault(err error) bool {
	var p *api.Problem
	return err != nil && (!errors.As(err, &p) || p.Status >= http.StatusInternalServerError)
}

// storeCooldown is how long after a stall the API may refuse calls: after a
// store time-out of 70 ms a node does not use the store for 400 ms.
const storeCooldown = time.Second

// callWithStallRetry makes a call. In the quick form it repeats calls that
// failed during or right after a stall of a processor, since the store may have
// run on it.
func (d *balancer) callWithStallRetry(call func(c *api.Client) error) error {
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		begin := time.Now()
		err := d.callWithFailover(call)
		if !isServerFault(err) || d.noRetry || *long || !d.stalls.Since(begin.Add(-storeCooldown)) || time.Now().After(deadline) {
			return err
		}
		d.stallRetries.Add(1)
	}
}

// callWithFailover calls a node, and the next one once. A node that refuses the
// connection does not count as called.
func (d *balancer) callWithFailover(call func(c *api.Client) error) error {
	n := d.calls.Add(1)
	var err error
	for i, tries := uint64(0), 0; i < 2*apiCount && tries < 2; i++ {
		if err = call(d.nodes[(n+i)%apiCount]); !isServerFault(err) || d.noRetry {
			return err
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			tries++
		}
		if i == 0 {
			d.retried.Add(1)
		}
	}
	return err
}

func (d *balancer) Allocate(ctx context.Context, r api.AllocateRequest) (a api.Allocation, err error) {
	err = d.callWithStallRetry(func(c *api.Client) error { a, err = c.Allocate(ctx, r); return err })
	return a, err
}

func (d *balancer) JoinCode(ctx context.Context, allocationID string) (code string, err error) {
	err = d.callWithStallRetry(func(c *api.Client) error { code, err = c.JoinCode(ctx, allocationID); return err })
	return code, err
}

func (d *balancer) Join(ctx context.Context, joinCode string) (a api.Allocation, err error) {
	err = d.callWithStallRetry(func(c *api.Client) error { a, err = c.Join(ctx, joinCode); return err })
	return a, err
}

func (d *balancer) getMissingPage() error {
	c := d.nodes[d.calls.Add(1)%apiCount]
	resp, err := c.HTTP.Get(c.BaseURL + "/nothing")
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

func relayOf(a api.Allocation, transport string) int {
	e, _ := a.Endpoint(transport)
	for i := range relayCount {
		if e.Host == relayAddr(i) && e.Port == playerPort || e.Secure && e.Reliable && e.Host == relayName(i) {
			return i
		}
	}
	return -1
}
