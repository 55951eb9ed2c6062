package client_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"sync"

	"github.com/quic-go/quic-go"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
)

// A host greets each player that joins.
func Example_host() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	relay := &api.Client{BaseURL: "http://127.0.0.1:7777"}
	ticket, err := client.Reserve(ctx, relay, 4, "")
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = session.Run(ctx) })
	defer running.Wait()
	defer session.Close()
	if err := session.Bind(ctx); err != nil {
		log.Print(err)
		return
	}
	code, err := relay.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("join code:", code)
	for {
		peer, err := session.Accept(ctx)
		if err != nil {
			return
		}
		_, _ = peer.Write([]byte("welcome"))
	}
}

// A player joins by code and talks QUIC to its host, through the relay.
func Example_playerWithQUIC() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	relay := &api.Client{BaseURL: "http://127.0.0.1:7777"}
	ticket, err := client.Redeem(ctx, relay, "BCDFGH")
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = session.Run(ctx) })
	defer running.Wait()
	defer session.Close()
	host, err := session.Connect(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	transport := &quic.Transport{Conn: session.PacketConn()}
	defer transport.Close()
	secure := &tls.Config{ServerName: "game.example.org", NextProtos: []string{"game"}}
	conn, err := transport.Dial(ctx, host.RemoteAddr(), secure, nil)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("connected to", conn.RemoteAddr())
}
