package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
)

// openingTrips is how many times the patience a WebSocket may take to open: it
// takes a round trip for the name, one for TCP, two for TLS and one for the upgrade.
const openingTrips = 5

var errNoWebSocket = errors.New("the region does not say where it takes WebSockets")

// pingWebSockets asks all sites at once, and returns the nearest first.
func pingWebSockets(ctx context.Context, scheme string, sites []client.Site, probes int, patience time.Duration) []reached {
	found := make([]reached, len(sites))
	var wg sync.WaitGroup
	for i, site := range sites {
		wg.Go(func() { found[i] = pingWebSocket(ctx, scheme, site, probes, patience) })
	}
	wg.Wait()
	qualities, openings := make([]client.Quality, len(found)), make(map[client.Site]time.Duration)
	for i, r := range found {
		qualities[i], openings[r.Site] = r.Quality, r.opening
	}
	client.SortByDistance(qualities)
	for i, q := range qualities {
		found[i] = reached{q, openings[q.Site]}
	}
	return found
}

// pingWebSocket opens one WebSocket and sends pings, each when the one before was
// answered or given up.
func pingWebSocket(ctx context.Context, scheme string, site client.Site, probes int, patience time.Duration) reached {
	r := reached{Quality: client.Quality{Site: site}}
	opening, cancel := context.WithTimeout(ctx, openingTrips*patience)
	defer cancel()
	start := time.Now()
	conn, _, err := websocket.Dial(opening, scheme+"://"+site.Addr+"/", nil)
	if err != nil {
		r.Err = fmt.Errorf("opening: %w", err)
		return r
	}
	r.opening = time.Since(start)
	defer conn.CloseNow()
	reading := conn.CloseRead(ctx) // Pongs are read there.
	var sum time.Duration
	for range probes {
		if reading.Err() != nil {
			r.Err = errors.New("the relay has ended the connection")
			break
		}
		trip, err := pingOnce(reading, conn, patience)
		r.Sent++
		if err == nil {
			r.Received++
			sum += trip
		}
	}
	if r.Received > 0 {
		r.RTT = sum / time.Duration(r.Received)
	}
	return r
}

func pingOnce(ctx context.Context, conn *websocket.Conn, patience time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	err := conn.Ping(ctx)
	return time.Since(start), err
}

// webSocketOf returns where a region takes WebSockets of a scheme.
func webSocketOf(r api.Region, scheme string) (addr string, err error) {
	u, err := url.Parse(r.WebSocketURL)
	switch {
	case err != nil:
		return "", err
	case r.WebSocketURL == "":
		return "", errNoWebSocket
	case u.Scheme != scheme:
		return "", fmt.Errorf("the region takes %s", r.WebSocketURL)
	}
	return u.Host, nil
}
