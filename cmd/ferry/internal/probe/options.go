package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client/netcode/link"
)

// Dialect is what a probe speaks over its link.
type Dialect string

// The dialects.
const (
	Netcode     Dialect = "netcode"     // package netcode: approval, RPCs, commands, snapshots
	Entities    Dialect = "entities"    // the transport with the pipelines of Netcode for Entities
	GameObjects Dialect = "gameobjects" // the transport with the pipelines of Netcode for GameObjects
)

// Options say what is probed. Exactly one of Listen, Connect, Host and Join is
// set.
type Options struct {
	Listen  netip.AddrPort // take clients at a UDP address
	Connect netip.AddrPort // connect to a server at a UDP address
	Host    int            // take so many clients through a relay; 0: no host
	Join    string         // connect through a relay, with a join code

	API    api.Client // of the relay, for Host and Join
	Region string     // for Host; empty lets the server choose

	Speak       Dialect
	Approve     bool  // a server of Netcode requires approval
	GameVersion int32 // of Netcode
	// Send is how many bytes each side sends per tick: commands and snapshots
	// of Netcode, messages on Pipeline otherwise. 0 sends nothing.
	Send     int
	Pipeline int           // of the transport; 0 is none, 1 to 3 are those of the dialect
	TickRate int           // ticks per second, 1 to 1000
	Duration time.Duration // 0: until the context ends
	Once     bool          // a server ends when its last client has left
	Stats    time.Duration // time between two reports; 0: only one, at the end

	In, Out link.Conditions // the bad network of each direction
	Seed    uint64          // of its chance

	JSON bool // a JSON object per line instead of text
}

// ErrOptions is wrapped by every refusal of options.
var ErrOptions = errors.New("probe")

// maxSend is below what every dialect carries in fragments.
const maxSend = 4096

// Check reports what is wrong with the options. Errors wrap ErrOptions.
func (o Options) Check() error {
	ways := 0
	for _, set := range []bool{o.Listen.IsValid(), o.Connect.IsValid(), o.Host != 0, o.Join != ""} {
		if set {
			ways++
		}
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, args...))
	}
	relayed := o.Host != 0 || o.Join != ""
	switch {
	case ways != 1:
		return refuse("give one of --listen, --connect, --host and --join")
	case o.Host < 0 || o.Host > 1000:
		return refuse("--host: %d is not within 1 to 1000 clients", o.Host)
	case relayed && o.API.BaseURL == "":
		return refuse("--host and --join need --api")
	case !relayed && (o.API.BaseURL != "" || o.API.Token != "" || o.Region != ""):
		return refuse("--api, --token, --token-file and --region are for --host and --join")
	case o.Connect.IsValid() && o.Connect.Port() == 0:
		return refuse("--connect: port 0")
	case o.Speak != Netcode && o.Speak != Entities && o.Speak != GameObjects:
		return refuse("--speak: %q is none of netcode, entities and gameobjects", o.Speak)
	case o.Send < 0 || o.Send > maxSend:
		return refuse("--send: %d is not within 0 to %d bytes", o.Send, maxSend)
	case o.Pipeline < 0 || o.Pipeline > 3:
		return refuse("--pipeline: %d is not within 0 to 3", o.Pipeline)
	case o.TickRate < 1 || o.TickRate > 1000:
		return refuse("--tick-rate: %d is not within 1 to 1000", o.TickRate)
	case o.Duration < 0 || o.Stats < 0:
		return refuse("--duration and --stats: a time is below 0")
	case o.Speak != Netcode && (o.Approve || o.GameVersion != 0):
		return refuse("--approve and --game-version are for --speak netcode")
	}
	for _, p := range []link.Conditions{o.In, o.Out} {
		if err := p.Check(); err != nil {
			return refuse("%v", err)
		}
	}
	return nil
}

// serves reports whether the probe takes clients.
func (o Options) serves() bool { return o.Listen.IsValid() || o.Host != 0 }
