// Command host hosts a chat for the page of examples/browser: it allocates a match, prints the
// address of the page with the join code, and passes each player's lines to all. Lines of the
// standard input are the host's own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
)

// silence is the time after which a player that sends nothing has left. A page that is closed by
// a crash says nothing, and a present one sends its name every 2 s.
const silence = 10 * time.Second

// message is what pages and host send each other.
type message struct {
	Name    string   `json:"name,omitempty"`
	Players []string `json:"players,omitempty"`
	From    string   `json:"from,omitempty"`
	Text    string   `json:"text,omitempty"`
}

func main() {
	log.SetFlags(0)
	calls := api.Client{}
	flag.StringVar(&calls.BaseURL, "api", "http://127.0.0.1:7777", "`URL` of the Allocations API")
	flag.StringVar(&calls.Token, "token", os.Getenv("RELAY_TOKEN"), "bearer token for the API; default $RELAY_TOKEN")
	page := flag.String("page", "http://127.0.0.1:8000/", "`URL` of the page, to print")
	players := flag.Int("players", 8, "maximum number of players")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := host(ctx, &calls, *players, *page); err != nil {
		log.Fatal(err)
	}
}

// host runs a chat until ctx ends.
func host(ctx context.Context, calls *api.Client, players int, page string) error {
	ticket, err := client.Reserve(ctx, calls, players, "")
	if err != nil {
		return err
	}
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Run(ctx) }()
	defer session.Close()
	if err := session.Bind(ctx); err != nil {
		return err
	}
	code, err := calls.JoinCode(ctx, ticket.ID.String())
	if err != nil {
		return err
	}
	fmt.Println("open", page+"#"+url.Values{"api": {calls.BaseURL}, "code": {code}}.Encode())

	c := &chat{names: make(map[*client.Peer]string)}
	go c.readLines()
	for {
		peer, err := session.Accept(ctx)
		if err != nil {
			break
		}
		go c.serve(peer)
	}
	if err := <-ended; err != context.Canceled {
		return err
	}
	return nil
}

// chat is the players that are present.
type chat struct {
	mu    sync.Mutex
	names map[*client.Peer]string
}

// serve handles the messages of a player until it leaves.
func (c *chat) serve(peer *client.Peer) {
	buf := make([]byte, 1500)
	for {
		_ = peer.SetReadDeadline(time.Now().Add(silence))
		n, err := peer.Read(buf)
		if err != nil {
			break
		}
		var m message
		if json.Unmarshal(buf[:n], &m) != nil || m.Name == "" || len(m.Name) > 100 {
			continue
		}
		c.present(peer, m.Name)
		if m.Text != "" {
			c.say(m.Name, m.Text)
		}
	}
	_ = peer.Close()
	c.mu.Lock()
	delete(c.names, peer)
	c.mu.Unlock()
	c.sendPlayers()
}

// present records the name of a player, and tells the list to all, which repairs what was lost.
func (c *chat) present(peer *client.Peer, name string) {
	c.mu.Lock()
	c.names[peer] = name
	c.mu.Unlock()
	c.sendPlayers()
}

func (c *chat) sendPlayers() {
	c.mu.Lock()
	names := []string{"host"}
	for _, name := range c.names {
		names = append(names, name)
	}
	c.mu.Unlock()
	slices.Sort(names[1:])
	c.send(message{Players: names})
}

// say prints a line and sends it to all.
func (c *chat) say(from, text string) {
	fmt.Printf("%s: %s\n", from, text)
	c.send(message{From: from, Text: text})
}

func (c *chat) send(m message) {
	b, err := json.Marshal(m)
	if err != nil {
		log.Print(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for peer := range c.names {
		_, _ = peer.Write(b) // Read reports the end of a player.
	}
}

func (c *chat) readLines() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		c.say("host", lines.Text())
	}
}
