package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// Errors of [Run] and [FindMax].
var (
	// ErrConfig says that a Config or DialectConfig has a value out of its range, or
	// values that exclude each other.
	ErrConfig = benchrig.ErrConfig
	// ErrRemote says that a datagram or a call would leave this machine without
	// AllowRemote.
	ErrRemote = benchrig.ErrRemote
	// ErrServerEnded says that the process of Config.ServerPID ended during the run.
	ErrServerEnded = errors.New("bench: the server's process ended during the run")
)

// The shapes of a load.
const (
	shapePairs = "pairs" // many unrelated hosts with one player each
	shapeStar  = "star"  // matches of one host and Players players
	shapeChurn = "churn" // sessions that come and go, with pairs in the background
	shapeIdle  = "idle"  // very many pairs, silent but for keep-alives, of which each plays a second in the end
)

// The directions of the datagrams of a match.
const (
	directionBoth = "both"
	directionUp   = "up"   // players to host
	directionDown = "down" // host to players
)

// Defaults of [Config].
const (
	defaultPayload   = 112 // with the 38 bytes of a RELAY header 150
	defaultDuration  = 10 * time.Second
	defaultWarmup    = 2 * time.Second
	defaultDrain     = 500 * time.Millisecond
	defaultKeepalive = 3 * time.Second
	replaceDrain     = 15 * time.Second // with ReplaceRate
	defaultPlayers   = 10               // of stars

	// None is a Warmup or a Keepalive that there is not, since zero is the default.
	None time.Duration = -1
)

// Limits of Config.
const (
	maxPayload  = 1434 // of a RELAY
	maxPlayers  = 255
	maxMatches  = 1 << 20
	maxWindow   = 1 << 16 // per flow; maxCredits bounds the sum
	maxDuration = time.Hour
)

// Config is one run. The zero value of a field means its default.
type Config struct {
	Label
	Load

	// Sources are the addresses that endpoints have, by default 127.1.0.0/16 to
	// 127.254.0.0/16, or ::1/128. Make others local first ("ip route add local
	// 10.128.0.0/12 dev lo") and route them back on the relay's side. A single address
	// (/32, /128) gives each endpoint a socket of its own, over UDP at most 1,024.
	Sources netip.Prefix
	// AllowRemote permits targets outside of loopback. Use it only with machines of
	// your own: the load is a flood.
	AllowRemote bool
	// ServerPID is the relay's process, for CPU and memory. 0 = not measured.
	ServerPID int
	// Metrics reads the relay's page /metrics for Result.Relay. Nil: not known.
	Metrics func(context.Context) (string, error)

	// OnSecond, if not nil, is called by Run once a second, in a goroutine of its own.
	OnSecond func(Second)
	// OnRun, if not nil, is called by FindMax after each run, in its goroutine.
	OnRun func(Result)

	traffic *traffic // of Traffic
}

// Label names a run and the conditions that the generator cannot see. The result repeats it.
type Label struct {
	// Name labels the run in tables and the plot. Default: the dialect's name.
	Name    string   `json:"name"`
	Command []string `json:"command,omitempty"` // that made the run, with its arguments
	Commit  string   `json:"commit,omitempty"`  // of the relay
	// Limits names the profile of limits that the server runs with, such as
	// "off" or "on, 60 calls a minute".
	Limits string `json:"limits"`
}

// Load is what a run sends. The result repeats it, with the defaults that were used.
type Load struct {
	// Shape is pairs (many unrelated hosts with one player each, the default), star (matches of one host
	// and Players players), churn (sessions that come and go, with pairs in the background) or idle (very
	// many pairs, silent but for keep-alives, of which each plays a second in the end).
	Shape string `json:"shape"`
	// Transport is how endpoints reach the relay: udp (the default), dtls, ws or wss. The shape churn
	// and ReplaceRate have no other than udp.
	Transport string `json:"transport"`
	// Family of the relay's endpoint: ipv4 or ipv6. Default that of Sources, or ipv4 unless the relay has only ipv6.
	Family string `json:"family"`
	// Direction of the datagrams in a match: both (the default), up (players to host) or down.
	Direction string `json:"direction"`
	// Matches is the number of hosts, 1 to 1,048,576. Default 200.
	Matches int `json:"matches"`
	// Players per host, 1 to 255. Default 10 for stars, and 1 for idle,
	// where more of them save calls of the API; always 1 for all other shapes.
	Players int `json:"players"`
	// Endpoints and Flows follow from the other fields. Run ignores them.
	Endpoints int `json:"endpoints"`
	Flows     int `json:"flows"`

	// Rate is the datagrams per second of all flows, in an open loop. 0: none.
	Rate float64 `json:"rate"`
	// Window, if not 0, closes the loop: it is the number of datagrams that each
	// flow keeps in flight, at most 65,536, and Rate has to be 0.
	Window int `json:"window"`
	// Payload is the content of a datagram in bytes, without the dialect's header. Default 112, 24 to 1,434.
	Payload int `json:"payload"`
	// Duration of the measured interval. Default 10 s, 1 ms to 1 h. With the shape idle it is the time of
	// silence, and what each pair plays after it is measured.
	Duration time.Duration `json:"durationNs"`
	// Warmup precedes Duration and does not count. Default 2 s, at most 1 h; [None]: there is none.
	Warmup time.Duration `json:"warmupNs"`
	// Drain is the time after Duration in which what arrives still counts: the last datagrams,
	// duplicates, and ends of replaced matches. Default 500 ms, at most 60 s.
	Drain time.Duration `json:"drainNs"`
	// Keepalive is the silence before a keep-alive. Default 3 s; [None]: never.
	Keepalive time.Duration `json:"keepaliveNs"`

	// Pinned ties the generator's thread, and no other, to processor CPU, 0 to 1,023.
	Pinned bool `json:"pinned"`
	CPU    int  `json:"cpu"`

	// BindRate is the number of repeated handshakes per second, beside the datagrams, 0 to 10,000,000.
	// One that no endpoint can send in time counts as offered and not sent.
	BindRate float64 `json:"bindRate"`
	// SessionRate is the number of sessions per second of the shape churn, which needs it; at most 100,000.
	SessionRate float64 `json:"churnRate"`
	// SessionLength is the time that a session sends datagrams. Default 1 s, at most 1 h.
	SessionLength time.Duration `json:"churnPlayNs"`
	// ReplaceRate is the number of matches per second, beside Rate, that fall silent and are
	// replaced by new ones, at most 10,000. Drain is then 15 s by default: silent allocations
	// end after the idle limit of the server.
	ReplaceRate float64 `json:"replaceRate,omitempty"`
	// Traffic, if not empty, is the name of a game's traffic, which gives the times and sizes of the
	// datagrams of each match: see [TrafficProfiles]. The shape is then a star, by default of the
	// game's number of players, and Payload the largest size. Rate changes the speed; 0 leaves it.
	Traffic string `json:"traffic,omitempty"`
}

const (
	// socketEndpoints is the number of endpoints on one socket.
	socketEndpoints = 1 << 15
	// maxOwnSockets bounds the endpoints with a socket each (a single source address).
	maxOwnSockets = 1024
	// batch and ownBatch are the most datagrams of a system call of a socket for many endpoints, and for one.
	batch, ownBatch = 256, 16
)

// maxCredits bounds the datagrams in flight in a closed loop.
const maxCredits = 1 << 22

func (cfg Config) withDefaults(d benchrig.Dialect) (Config, error) {
	if err := cfg.setTraffic(); err != nil {
		return cfg, err
	}
	cfg.Label.Name = cmp.Or(cfg.Label.Name, d.Name())
	cfg.Shape = cmp.Or(cfg.Shape, shapePairs)
	cfg.Direction = cmp.Or(cfg.Direction, directionBoth)
	cfg.Matches = cmp.Or(cfg.Matches, 200)
	switch cfg.Shape {
	case shapeStar:
		cfg.Players = cmp.Or(cfg.Players, defaultPlayers)
	case shapeIdle:
		cfg.Players = cmp.Or(cfg.Players, 1)
	case shapePairs, shapeChurn:
		cfg.Players = 1
	}
	cfg.Payload = cmp.Or(cfg.Payload, defaultPayload)
	cfg.Duration = cmp.Or(cfg.Duration, defaultDuration)
	cfg.Warmup = cmp.Or(cfg.Warmup, defaultWarmup)
	if cfg.ReplaceRate > 0 {
		cfg.Drain = cmp.Or(cfg.Drain, replaceDrain)
	}
	cfg.Drain = cmp.Or(cfg.Drain, defaultDrain)
	cfg.Keepalive = cmp.Or(cfg.Keepalive, defaultKeepalive)
	cfg.SessionLength = cmp.Or(cfg.SessionLength, time.Second)
	cfg.Warmup = max(cfg.Warmup, 0)
	cfg.Transport = cmp.Or(cfg.Transport, benchrig.TransportUDP)
	if cfg.Sources.IsValid() {
		cfg.Family = cmp.Or(cfg.Family, benchrig.FamilyOf(cfg.Sources.Addr()))
	} else {
		cfg.Family = cmp.Or(cfg.Family, benchrig.FamilyIPv4)
		cfg.Sources = benchrig.DefaultSources(cfg.Family)
	}
	if err := cfg.check(d); err != nil {
		return cfg, err
	}
	if cfg.Shape == shapeIdle {
		cfg.Rate = playDatagrams * float64(cfg.flows()) / cfg.playTime().Seconds()
	}
	return cfg, nil
}

const (
	// playDatagrams is how many each flow of the shape idle sends in the end: one that is lost is no
	// endpoint that is gone.
	playDatagrams = 4
	// playRate is the most that all of them send per second.
	playRate = 20_000
)

// playTime is a second, or more for very many pairs.
func (cfg *Config) playTime() time.Duration {
	return max(time.Second, time.Duration(float64(playDatagrams*cfg.flows())/playRate*1e9))
}

func (cfg *Config) flows() int {
	if cfg.Direction == directionBoth {
		return 2 * cfg.Matches * cfg.Players
	}
	return cfg.Matches * cfg.Players
}

func (cfg *Config) endpoints() int { return cfg.Matches * (1 + cfg.Players) }

func (cfg *Config) ownSockets() bool {
	return cfg.Sources.IsSingleIP() && !benchrig.IsTCP(cfg.Transport)
}

// check returns an error about the first value out of its range, or values that exclude each other.
func (cfg *Config) check(d benchrig.Dialect) error {
	for _, c := range []struct{ name, value, among string }{
		{"shape", cfg.Shape, "pairs, star, churn, idle"},
		{"direction", cfg.Direction, "both, up, down"},
		{"transport", cfg.Transport, "udp, dtls, ws, wss"},
		{"family", cfg.Family, "ipv4, ipv6"},
	} {
		if !slices.Contains(strings.Split(c.among, ", "), c.value) {
			return fmt.Errorf("%w: %s %q is not one of %s", ErrConfig, c.name, c.value, c.among)
		}
	}
	for _, c := range []struct {
		name          string
		value, lo, hi float64
	}{
		{"Matches", float64(cfg.Matches), 1, maxMatches},
		{"Players", float64(cfg.Players), 1, maxPlayers},
		{"Rate", cfg.Rate, 0, 1e8},
		{"Window", float64(cfg.Window), 0, maxWindow},
		{"Payload", float64(cfg.Payload), stampLen, maxPayload},
		{"Duration", cfg.Duration.Seconds(), 1e-3, maxDuration.Seconds()},
		{"Warmup", cfg.Warmup.Seconds(), 0, maxDuration.Seconds()},
		{"Drain", cfg.Drain.Seconds(), 0, 60},
		{"BindRate", cfg.BindRate, 0, 1e7},
		{"CPU", float64(cfg.CPU), 0, 1023},
		{"session rate", cfg.SessionRate, 0, 1e5},
		{"ReplaceRate", cfg.ReplaceRate, 0, 1e4},
		{"session length", cfg.SessionLength.Seconds(), 0, maxDuration.Seconds()},
	} {
		if math.IsNaN(c.value) || c.value < c.lo || c.value > c.hi {
			return fmt.Errorf("%w: %s is %v, not in %v to %v", ErrConfig, c.name, c.value, c.lo, c.hi)
		}
	}
	for _, c := range cfg.conflicts(d) {
		if c.exists {
			return fmt.Errorf("%w: %s", ErrConfig, c.reason)
		}
	}
	return nil
}

type conflict struct {
	exists bool
	reason string
}

func (cfg *Config) conflicts(d benchrig.Dialect) []conflict {
	_, replaces := d.(benchrig.Replacer)
	_, plays := d.(benchrig.Churner)
	c, connects := d.(benchrig.Connector)
	udp, churn := cfg.Transport == benchrig.TransportUDP, cfg.Shape == shapeChurn
	return []conflict{
		{cfg.ReplaceRate > 0 && !replaces, d.Name() + " cannot replace matches"},
		{cfg.ReplaceRate > 0 && (cfg.Rate == 0 || cfg.BindRate > 0 || cfg.Sources.IsSingleIP() ||
			cfg.Shape != shapePairs && cfg.Shape != shapeStar),
			"ReplaceRate is for pairs and stars with Rate, many addresses and no BindRate"},
		{cfg.ReplaceRate > 0 && !udp, fmt.Sprintf("matches are replaced over udp, not %s", cfg.Transport)},
		{churn && !plays, d.Name() + " cannot play sessions"},
		{churn && cfg.SessionRate <= 0, "the shape churn needs a session rate"},
		{churn && !udp, fmt.Sprintf("the sessions of shape churn are over udp, not %s", cfg.Transport)},
		{cfg.Shape == shapeIdle && (cfg.Rate > 0 || cfg.Window > 0 || cfg.BindRate > 0),
			"the shape idle has neither Rate, Window nor BindRate"},
		{cfg.Rate > 0 && cfg.Window > 0, "Rate and Window exclude each other"},
		{cfg.Window*cfg.flows() > maxCredits, fmt.Sprintf("a window of %d for %d flows, limit %d in all", cfg.Window, cfg.flows(), maxCredits)},
		{benchrig.FamilyOf(cfg.Sources.Addr()) != cfg.Family, fmt.Sprintf("sources %v are not of the family %s", cfg.Sources, cfg.Family)},
		{!udp && !(connects && c.Carries(cfg.Transport)),
			fmt.Sprintf("%s has no meaning over %s", d.Name(), cfg.Transport)},
		{cfg.ownSockets() && cfg.endpoints() > maxOwnSockets,
			fmt.Sprintf("%d endpoints on one address, limit %d", cfg.endpoints(), maxOwnSockets)},
	}
}
