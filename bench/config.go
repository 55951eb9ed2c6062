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
	// ErrConfig says that a Config or FerryConfig has a value out of its range, or
	// values that exclude each other.
	ErrConfig = benchrig.ErrConfig
	// ErrRemote says that a datagram or a call would leave this machine without
	// AllowRemote.
	ErrRemote = benchrig.ErrRemote
	// ErrServerEnded says that the process of Config.ServerPID ended during the run.
	ErrServerEnded = errors.New("bench: the server's process ended during the run")
)

// ErrLate says that the endpoints were not ready at Config.StartAt.
var ErrLate = errors.New("bench: the set-up took too long")

// Shape is the form of a load.
type Shape string

// The shapes.
const (
	ShapePairs Shape = "pairs" // many unrelated hosts with one player each
	ShapeStar  Shape = "star"  // matches of one host and Players players
	ShapeHot   Shape = "hot"   // one pair
	ShapeChurn Shape = "churn" // sessions that come and go, with pairs in the background
	ShapeIdle  Shape = "idle"  // very many pairs, nearly silent
	// ShapeNetcode is matches as games have them: connections of package
	// netcode, with a command per player and tick up and a snapshot down.
	ShapeNetcode Shape = "netcode"
)

// Direction says which way datagrams go in a match.
type Direction string

// The directions.
const (
	DirectionBoth Direction = "both"
	DirectionUp   Direction = "up"   // players to host
	DirectionDown Direction = "down" // host to players
)

// Align says which datagrams are due at the same time.
type Align string

// The alignments. In each the flows take turns, and each sends once per tick.
const (
	AlignEven  Align = "even"  // none: due times are spread evenly
	AlignMatch Align = "match" // those of a match; matches are spread evenly over the tick
	AlignTick  Align = "tick"  // all of them
)

// Defaults of [Config].
const (
	DefaultPayload   = 112 // with the 38 bytes of a RELAY header 150
	DefaultDuration  = 10 * time.Second
	DefaultWarmup    = 2 * time.Second
	DefaultDrain     = 500 * time.Millisecond
	DefaultKeepalive = 3 * time.Second
	DefaultBatch     = 256
	replaceDrain     = 15 * time.Second // with ReplaceRate
	DefaultPlayers   = 10               // of ShapeStar and ShapeNetcode
	DefaultCommand   = 40               // Payload of ShapeNetcode
	DefaultSnapshot  = 600              // of ShapeNetcode

	// DefaultAllocateWorkers is the number of concurrent calls with AllocateRate.
	DefaultAllocateWorkers = 8
)

// Limits of Config.
const (
	maxPayload  = 1434 // of a RELAY
	maxPlayers  = 255
	maxSnapshot = 16<<10 - 18 // what the transport carries in fragments
	maxMatches  = 1 << 20
	maxWindow   = 1 << 16 // per flow; maxCredits bounds the sum
	maxDuration = time.Hour
)

// Config is one run. The zero value of a field means its default.
type Config struct {
	// Name labels the run in tables and plots. Default: the dialect's name.
	Name string
	// Limits names the profile of limits that the server runs with, such as
	// "off" or "on, 60 calls a minute". The result repeats it.
	Limits string
	// Commit and Command are for the result, which repeats them.
	Commit  string
	Command []string

	// Shape. Default ShapePairs.
	Shape Shape
	// Direction. Default DirectionBoth.
	Direction Direction
	// Align. Default AlignMatch for stars, else AlignEven.
	Align Align
	// Matches is the number of hosts. Default 200; hot: always 1.
	Matches int
	// Players per host, 1 to 255. Default 10 for stars and netcode, and 1 for idle,
	// where more of them save calls of the API; always 1 for all other shapes.
	Players int

	// Traffic, if not nil, gives the times and sizes of the datagrams of each match, in stars of
	// its number of players. Rate changes its speed then; 0 is the speed of the file. Matches
	// begin at different places of its cycle, with AlignTick all at its start.
	Traffic *Traffic
	// Rate is the number of datagrams per second of all flows together, in an open
	// loop. 0 with Window 0 sends nothing but keep-alives.
	Rate float64
	// Window, if not 0, closes the loop: it is the number of datagrams that each
	// flow keeps in flight, at most 65,536, and Rate has to be 0. It finds
	// saturation; its latency is that of full queues.
	Window int
	// Payload is the content of a datagram in bytes without the dialect's
	// header. Default 112, 24 to 1,434.
	Payload int
	// Snapshot is the size of a snapshot of the shape netcode in bytes; Payload is
	// the size of a command then, with 40 for a default. Default 600, 24 to 16,366.
	// The transport sends large ones in fragments.
	Snapshot int
	// Duration of the measured interval. Default 10 s, at most 1 h.
	Duration time.Duration
	// Warmup precedes Duration and does not count. Default 2 s; negative = none.
	Warmup time.Duration
	// Drain is the time for the last datagrams to arrive. Default 500 ms, at most 60 s.
	Drain time.Duration

	// StartAt is when the warm-up begins, so that several generators begin together. Default: when
	// the endpoints are ready. It is an error if they become ready later. At most 1 h ahead, for
	// one run, and not for the shape churn.
	StartAt time.Time

	// Keepalive is the time after which a silent endpoint sends a keep-alive.
	// Default 3 s; negative = never.
	Keepalive time.Duration
	// BindRate is the number of repeated handshakes per second, beside Rate. An
	// endpoint repeats its own after the answer to the last one, or after 500 ms.
	// A handshake that no endpoint can send in time counts as offered and not sent.
	BindRate float64
	// AllocateRate is the number of allocations per second that the generator
	// requests from the API, beside Rate. Nothing binds them. 0 with
	// AllocateWorkers: as fast as the API answers.
	AllocateRate float64
	// AllocateWorkers is the number of those calls that run concurrently. Default 8
	// with AllocateRate, else 0: no calls; at most 1,024.
	AllocateWorkers int
	// Baseline is the first part of Duration, in which there are no handshakes
	// and no calls, so that the result shows their effect on forwarding.
	// Default half of Duration if there are any beside datagrams; negative = none.
	Baseline time.Duration

	// ReplaceRate is the number of matches per second, beside Rate, that fall silent
	// and are replaced by new ones, as many as before live. New ones are reserved over
	// the API, and use endpoints whose allocations have ended. Drain is then 15 s by
	// default: silent allocations end after the idle limit of the server.
	ReplaceRate float64

	// ServerPID is the relay's process, for CPU and memory. 0 = not measured.
	ServerPID int
	// ServerThreads are kernel threads whose CPU time counts as the relay's, such as
	// those that receive for a network interface (threaded NAPI).
	ServerThreads []int

	// Metrics reads the admin page /metrics of a relay of this project, before and after the
	// run, for Result.Relay. Nil: it is not known.
	Metrics func(context.Context) (string, error)

	// Pin ties the generator's thread to processor CPU. Other threads of this
	// process are not pinned: start it with taskset(1) for that.
	Pin bool
	CPU int
	// Transport is how endpoints reach the relay: see [Transport]. Default UDP. The shape churn
	// and ReplaceRate have no other.
	Transport Transport
	// Family is that of the relay's endpoint, where it lists both. Default that of Sources,
	// or IPv4.
	Family Family
	// Sources are the addresses that endpoints have. Default for IPv4 127.1.0.0/16
	// and those after it up to 127.254.0.0/16, which are this machine's already, and for
	// IPv6 ::1/128. Make others local first ("ip route add local 10.128.0.0/12 dev
	// lo") and route them back on the relay's side. A single address (/32, /128) gives
	// each endpoint a socket of its own, for a relay on another machine: costly,
	// and over UDP at most 1,024 endpoints.
	Sources netip.Prefix
	// Sockets of the generator, or groups of connections of a transport over TCP. Default 1
	// per 32,768 endpoints, at most 64.
	Sockets int
	// Batch is the most datagrams of one system call. Default and limit 256.
	Batch int
	// ReadBuffer per socket in bytes. Default: as of sock.Config; over TCP the kernel's choice.
	ReadBuffer int

	// ChurnRate is the number of sessions per second of the shape churn.
	ChurnRate float64
	// ChurnPlay is the time that a session sends datagrams. Default 1 s.
	ChurnPlay time.Duration

	// AllowRemote permits targets outside of loopback. Use it only with machines of
	// your own: the load is a flood.
	AllowRemote bool

	// Progress is called by Run once a second, in a goroutine of its own, with the
	// last second. It takes processor time from the generator.
	Progress func(Second)
	// Tried is called by FindMax with the result of each run, in its own goroutine,
	// before the next run.
	Tried func(Result)
}

// maxOwnSockets bounds the endpoints with a socket each (a single source address).
const maxOwnSockets = 1024

// maxCredits bounds the datagrams in flight in a closed loop.
const maxCredits = 1 << 22

func (cfg Config) withDefaults(d Dialect) (Config, error) {
	if err := cfg.setTraffic(); err != nil {
		return cfg, err
	}
	cfg.Name = cmp.Or(cfg.Name, d.Name())
	cfg.Shape = cmp.Or(cfg.Shape, ShapePairs)
	cfg.Direction = cmp.Or(cfg.Direction, DirectionBoth)
	cfg.Matches = cmp.Or(cfg.Matches, 200)
	switch cfg.Shape {
	case ShapeStar:
		cfg.Players = cmp.Or(cfg.Players, DefaultPlayers)
		cfg.Align = cmp.Or(cfg.Align, AlignMatch)
	case ShapeHot:
		cfg.Matches, cfg.Players = 1, 1
	case ShapeNetcode:
		cfg.Players = cmp.Or(cfg.Players, DefaultPlayers)
		cfg.Align = cmp.Or(cfg.Align, AlignMatch)
		cfg.Payload = cmp.Or(cfg.Payload, DefaultCommand)
		cfg.Snapshot = cmp.Or(cfg.Snapshot, DefaultSnapshot)
	case ShapeIdle:
		cfg.Players = cmp.Or(cfg.Players, 1)
	case ShapePairs, ShapeChurn:
		cfg.Players = 1
	}
	cfg.Align = cmp.Or(cfg.Align, AlignEven)
	cfg.Payload = cmp.Or(cfg.Payload, DefaultPayload)
	cfg.Duration = cmp.Or(cfg.Duration, DefaultDuration)
	cfg.Warmup = cmp.Or(cfg.Warmup, DefaultWarmup)
	if cfg.ReplaceRate > 0 {
		cfg.Drain = cmp.Or(cfg.Drain, replaceDrain)
	}
	cfg.Drain = cmp.Or(cfg.Drain, DefaultDrain)
	cfg.Keepalive = cmp.Or(cfg.Keepalive, DefaultKeepalive)
	cfg.Batch = cmp.Or(cfg.Batch, DefaultBatch)
	cfg.ChurnPlay = cmp.Or(cfg.ChurnPlay, time.Second)
	cfg.Warmup = max(cfg.Warmup, 0)
	if cfg.AllocateRate > 0 {
		cfg.AllocateWorkers = cmp.Or(cfg.AllocateWorkers, DefaultAllocateWorkers)
	}
	if cfg.loadsControlPlane() && (cfg.Rate > 0 || cfg.Window > 0) {
		cfg.Baseline = cmp.Or(cfg.Baseline, cfg.Duration/2)
	}
	cfg.Baseline = max(cfg.Baseline, 0)
	cfg.Transport = cmp.Or(cfg.Transport, TransportUDP)
	if cfg.Sources.IsValid() {
		cfg.Family = cmp.Or(cfg.Family, FamilyOf(cfg.Sources.Addr()))
	} else {
		cfg.Family = cmp.Or(cfg.Family, FamilyIPv4)
		cfg.Sources = benchrig.DefaultSources(benchrig.Family(cfg.Family))
	}
	if err := cfg.check(d); err != nil {
		return cfg, err
	}
	endpoints := cfg.Matches * (1 + cfg.Players)
	if cfg.Sources.IsSingleIP() && !cfg.Transport.IsTCP() {
		cfg.Sockets, cfg.Batch = endpoints, min(cfg.Batch, 16)
		if endpoints > maxOwnSockets {
			return cfg, fmt.Errorf("%w: %d endpoints on one address, limit %d", ErrConfig, endpoints, maxOwnSockets)
		}
	}
	if flows := 2 * cfg.Matches * cfg.Players; cfg.Window*flows > maxCredits {
		return cfg, fmt.Errorf("%w: a window of %d for %d flows, limit %d in all", ErrConfig, cfg.Window, flows, maxCredits)
	}
	cfg.Sockets = cmp.Or(cfg.Sockets, 1+(endpoints-1)>>15)
	return cfg, nil
}

// loadsControlPlane reports whether the run has BINDs or allocations beside the load.
func (cfg *Config) loadsControlPlane() bool { return cfg.BindRate > 0 || cfg.AllocateWorkers > 0 }

func (cfg *Config) check(d Dialect) error {
	if err := cfg.checkNames(d); err != nil {
		return err
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
		{"AllocateRate", cfg.AllocateRate, 0, 1e6},
		{"AllocateWorkers", float64(cfg.AllocateWorkers), 0, 1024},
		{"CPU", float64(cfg.CPU), 0, 1023},
		{"Sockets", float64(cfg.Sockets), 0, 64},
		{"Batch", float64(cfg.Batch), 1, DefaultBatch},
		{"ChurnRate", cfg.ChurnRate, 0, 1e5},
		{"ReplaceRate", cfg.ReplaceRate, 0, 1e4},
		{"ChurnPlay", cfg.ChurnPlay.Seconds(), 0, maxDuration.Seconds()},
	} {
		if math.IsNaN(c.value) || c.value < c.lo || c.value > c.hi {
			return fmt.Errorf("%w: %s is %v, not in %v to %v", ErrConfig, c.name, c.value, c.lo, c.hi)
		}
	}
	if cfg.Rate > 0 && cfg.Window > 0 {
		return fmt.Errorf("%w: Rate and Window exclude each other", ErrConfig)
	}
	switch wait := time.Until(cfg.StartAt); {
	case cfg.StartAt.IsZero():
	case wait <= 0:
		return fmt.Errorf("%w: StartAt is %v ago", ErrConfig, roundDigits(-wait))
	case wait > maxDuration:
		return fmt.Errorf("%w: StartAt is %v ahead, limit %v", ErrConfig, roundDigits(wait), maxDuration)
	case cfg.Shape == ShapeChurn:
		return fmt.Errorf("%w: StartAt is not for the shape %s", ErrConfig, cfg.Shape)
	}
	if err := cfg.checkNetcode(); err != nil {
		return err
	}
	if cfg.Baseline > 0 && (cfg.Baseline >= cfg.Duration || !cfg.loadsControlPlane()) {
		return fmt.Errorf("%w: Baseline is a part of Duration before BINDs or allocations begin", ErrConfig)
	}
	if err := cfg.checkTransport(d); err != nil {
		return err
	}
	if cfg.Sockets > cfg.Matches {
		return fmt.Errorf("%w: more sockets than matches", ErrConfig)
	}
	return nil
}

// checkNetcode checks the fields that depend on the shape netcode.
func (cfg *Config) checkNetcode() error {
	switch {
	case cfg.Shape != ShapeNetcode && cfg.Snapshot != 0:
		return fmt.Errorf("%w: Snapshot is for the shape netcode", ErrConfig)
	case cfg.Shape != ShapeNetcode:
		return nil
	case cfg.Snapshot < stampLen || cfg.Snapshot > maxSnapshot:
		return fmt.Errorf("%w: Snapshot is %d, not in %d to %d", ErrConfig, cfg.Snapshot, stampLen, maxSnapshot)
	case cfg.Rate == 0 || cfg.Direction != DirectionBoth:
		return fmt.Errorf("%w: the shape netcode needs Rate, and both directions", ErrConfig)
	}
	return nil
}

func (cfg *Config) checkNames(d Dialect) error {
	for _, c := range []struct{ name, value, among string }{
		{"shape", string(cfg.Shape), "pairs, star, hot, churn, idle, netcode"},
		{"direction", string(cfg.Direction), "both, up, down"},
		{"align", string(cfg.Align), "even, match, tick"},
		{"transport", string(cfg.Transport), "udp, dtls, ws, wss"},
		{"family", string(cfg.Family), "ipv4, ipv6"},
	} {
		if !slices.Contains(strings.Split(c.among, ", "), c.value) {
			return fmt.Errorf("%w: %s %q is not one of %s", ErrConfig, c.name, c.value, c.among)
		}
	}
	if _, ok := d.(benchrig.Reserver); cfg.AllocateWorkers > 0 && !ok {
		return fmt.Errorf("%w: %s has no API to ask for allocations", ErrConfig, d.Name())
	}
	if cfg.ReplaceRate > 0 {
		if _, ok := d.(benchrig.Replacer); !ok {
			return fmt.Errorf("%w: %s cannot replace matches", ErrConfig, d.Name())
		}
		if cfg.Rate == 0 || cfg.BindRate > 0 || cfg.Sources.IsSingleIP() || cfg.Shape != ShapePairs && cfg.Shape != ShapeStar {
			return fmt.Errorf("%w: ReplaceRate is for pairs and stars with Rate, many addresses and no BindRate", ErrConfig)
		}
	}
	if cfg.Shape == ShapeChurn {
		if _, ok := d.(benchrig.Churner); !ok {
			return fmt.Errorf("%w: %s cannot play sessions", ErrConfig, d.Name())
		}
		if cfg.ChurnRate <= 0 {
			return fmt.Errorf("%w: shape churn needs ChurnRate", ErrConfig)
		}
	}
	return nil
}
