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

// balancer is the API as a backend calls it through a load balancer: the nodes in
// turn, without those that take no connection, and the next one once where a
// call fails by the server's fault. Any goroutine may call it.
type balancer struct {
	nodes        []*api.Client
	noRetry      bool // a call that failed is not tried again; fixed before the first
	stalls       *lab.Stalls
	stallRetries atomic.Uint64 // calls that failed on a machine that stood still
	calls        atomic.Uint64
	retried      atomic.Uint64
}

// newDoor returns the API nodes as they are reached from a namespace, with so
// many connections to each.
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

// close ends the connections that wait for calls.
func (d *balancer) close() {
	for _, c := range d.nodes {
		c.HTTP.CloseIdleConnections()
	}
}

// fault reports whether a call failed by the server's fault, so that another
// node may do better.
func isServerFault(err error) bool {
	var p *api.Problem
	return err != nil && (!errors.As(err, &p) || p.Status >= http.StatusInternalServerError)
}

// healing is for how long a machine that stood still may refuse calls: a store
// that did not answer within 70 ms is not asked for the next 400 ms.
const storeCooldown = time.Second

// do makes a call. In the quick form one that failed while a processor stood
// still, or right after that, is made again: the store may have been on it, and
// no server can prevent that.
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

// try calls a node, and the next one once. A node that takes no connection was not
// called.
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

// Allocate is api.Client's.
func (d *balancer) Allocate(ctx context.Context, r api.AllocateRequest) (a api.Allocation, err error) {
	err = d.callWithStallRetry(func(c *api.Client) error { a, err = c.Allocate(ctx, r); return err })
	return a, err
}

// JoinCode is api.Client's.
func (d *balancer) JoinCode(ctx context.Context, allocationID string) (code string, err error) {
	err = d.callWithStallRetry(func(c *api.Client) error { code, err = c.JoinCode(ctx, allocationID); return err })
	return code, err
}

// Join is api.Client's.
func (d *balancer) Join(ctx context.Context, joinCode string) (a api.Allocation, err error) {
	err = d.callWithStallRetry(func(c *api.Client) error { a, err = c.Join(ctx, joinCode); return err })
	return a, err
}

// look asks for a page that is not there.
func (d *balancer) getMissingPage() error {
	c := d.nodes[d.calls.Add(1)%apiCount]
	resp, err := c.HTTP.Get(c.BaseURL + "/nothing")
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// relayOf returns the number of the relay to which an allocation leads by a
// transport, or -1.
func relayOf(a api.Allocation, transport string) int {
	e, _ := a.Endpoint(transport)
	for i := range relayCount {
		if e.Host == relayAddr(i) && e.Port == playerPort || e.Secure && e.Reliable && e.Host == relayName(i) {
			return i
		}
	}
	return -1
}
