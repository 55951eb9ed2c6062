package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"strings"

	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/ferryrelay/ferry/internal/server/process"
	"github.com/ferryrelay/ferry/internal/server/upgrade"
	"github.com/urfave/cli/v3"
)

func (s streams) settingCommand(c *cli.Command) *cli.Command { return s.command(withHelpAll(c)) }

// jsonError is an error of a command whose log is JSON, as the error then is.
type jsonError struct{ error }

func (e jsonError) Unwrap() error { return e.error }

func serveCommand(s streams) *cli.Command {
	return s.settingCommand(&cli.Command{
		Name:  "serve",
		Usage: "run relay and API for public access, on one machine",
		Description: `The API requires a bearer token. Tokens are in the file, each with its project and
environment. Responses of the API contain keys, so plain HTTP is refused on a public
address unless --trusted-proxies names the reverse proxies that terminate TLS.

Matches survive a restart or a crash if --state-dir stays the same. With --drain-timeout,
the first SIGTERM or SIGINT begins a drain, in which running matches continue; the second
shuts down in order, the third exits at once.

Examples:
   ferry serve --config /etc/ferry/ferry.yaml
   ferry serve -c ferry.yaml --advertise 203.0.113.7 --drain-timeout 1h
   ferry check -c ferry.yaml              the settings in force

docs/operating.md begins with a file, and docs/settings.md has every setting.`,
		Flags:  config.Flags(config.Serve()),
		Action: s.runProcess(process.Serve),
	})
}

func relayCommand(s streams) *cli.Command {
	return s.settingCommand(&cli.Command{
		Name:  "relay",
		Usage: "run one relay of a fleet, without an API",
		Description: `Relays for players that the API processes of its fleet (ferry api) send here. It
registers itself, its seats and its matches in the store; its matches continue while
the store is unavailable. API processes reach it at --cluster, which belongs in a
private network, and authenticate it by its certificate.

Players connect over UDP and DTLS at --udp, and over WebSocket at --http, which serves
nothing else. Matches survive a restart, as with ferry serve.

Examples:
   ferry ctl cluster-ca /etc/ferry relay --state-dir /var/lib/ferry
   ferry relay --config /etc/ferry/ferry.yaml --region eu
   ferry ctl drain --deadline 1h

   # ferry.yaml
   store: redis://10.0.0.5:6379
   cluster: 10.0.0.7:7779
   cluster_ca: /etc/ferry/ca.pem
   cluster_cert: /etc/ferry/relay.pem
   cluster_key: /etc/ferry/relay-key.pem
   advertise: 203.0.113.7
   region: eu

ferry check --role relay -c ferry.yaml shows the settings in force.`,
		Flags:  config.Flags(config.Serve()),
		Action: s.runProcess(process.Relay),
	})
}

func apiCommand(s streams) *cli.Command {
	return s.settingCommand(&cli.Command{
		Name:  "api",
		Usage: "run one API process of a fleet, without a relay",
		Description: `Serves the calls of players and backends, at --http, for all relays of its fleet (ferry
relay). It finds the relays in the store, distributes new matches over them, and has no
state. Run two or more behind a load balancer.

While the store is unavailable, calls that need it return 503 and Retry-After. The
process stays ready, so that a load balancer does not lose all processes at once.

Examples:
   ferry ctl cluster-ca /etc/ferry api
   ferry api --config /etc/ferry/ferry.yaml --http 0.0.0.0:7777
   ferry ctl nodes                          this process and all relays

   # ferry.yaml
   store: redis://10.0.0.5:6379
   cluster_ca: /etc/ferry/ca.pem
   cluster_cert: /etc/ferry/api.pem
   cluster_key: /etc/ferry/api-key.pem
   trusted_proxies: 10.0.0.0/8
   tokens:
     - secret_file: /etc/ferry/token
       project: my-game
       environment: production

ferry check --role api -c ferry.yaml shows the settings in force.`,
		Flags:  config.Flags(config.Serve()),
		Action: s.runProcess(process.API),
	})
}

func devCommand(s streams) *cli.Command {
	return s.settingCommand(&cli.Command{
		Name:  "dev",
		Usage: "run relay and API on loopback: no credentials, no limits, no state",
		Description: `The protocol is the same as in serve. The API needs no token, requests and ERROR replies
have no rate limit, and each start creates a new relay identity: --state-dir has no
effect. --bind-timeout is 10m instead of 10s, which leaves time to type API calls.

Its log has a line for each step of a match (allocated, join code, bound, linked, ended),
and for each call and kind of datagram that was refused, with the reason.

Examples:
   ferry dev
   ferry dev --udp 127.0.0.1:0 --http 127.0.0.1:0 --admin 127.0.0.1:0
   ferry dev --udp 0.0.0.0:7777 --http 0.0.0.0:7777     for devices in your network

   curl -X POST http://127.0.0.1:7777/v1/allocate -d '{"maxConnections":4}'`,
		Flags:  config.Flags(config.Dev()),
		Action: s.runProcess(process.Dev),
	})
}

// logDevWarnings says what dev leaves out.
func logDevWarnings(log *slog.Logger, c config.Config) {
	log.Warn("DEV: NO CREDENTIALS: every client that reaches the API gets an allocation")
	log.Warn("DEV: NO LIMITS: requests, failed joins and ERROR replies are not limited")
	log.Warn("DEV: NOTHING IS KEPT: a restart ends every match")
	for _, addr := range append([]config.Addr{c.HTTP}, c.UDP...) {
		if !addr.Addr().IsLoopback() {
			log.Warn("DEV: OTHERS CAN REACH THIS RELAY: this is for networks that you trust", "address", addr.String())
		}
	}
}

// load reads the settings of a command and checks them for mode.
func (s streams) load(cmd *cli.Command, mode process.Mode) (config.Loaded, error) {
	defaults := config.Serve()
	if mode == process.Dev {
		defaults = config.Dev()
	}
	loaded, err := config.Load(cmd, s.environ, defaults)
	if !loaded.IsZero() {
		err = errors.Join(err, process.Check(loaded.Config, mode))
	}
	return loaded, err
}

// runProcess runs a process in a mode, with a warning for each setting that the mode ignores.
func (s streams) runProcess(mode process.Mode) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) (err error) {
		var loaded config.Loaded
		defer func() {
			if err != nil && loaded.LogFormat == logFormatJSON {
				err = jsonError{err}
			}
		}()
		parent, err := upgrade.Inherit()
		if err != nil {
			return err
		}
		defer func() {
			if err != nil && parent != nil {
				_ = parent.Fail(err) // It is in the log as well.
			}
		}()
		load := func() (config.Loaded, error) { return s.load(cmd, mode) }
		if loaded, err = load(); err != nil {
			return usage(cmd, err)
		}
		o := process.Options{Config: loaded.Config, Mode: mode, Parent: parent, Loaded: loaded, Reload: load}
		o.Logger, o.Level = newLogger(s.stderr, o.Config)
		if mode == process.Relay || mode == process.API {
			redisstore.SetLogger(o.Logger)
		}
		if mode == process.Dev {
			logDevWarnings(o.Logger, o.Config)
			if o.Identity, err = state.NewIdentity(); err != nil {
				return err
			}
			return s.start(ctx, o)
		}
		for _, why := range process.Unused(o.Loaded, mode) {
			o.Logger.Warn(why)
		}
		if mode == process.API {
			return s.start(ctx, o)
		}
		dir, err := state.Inherit(o.Config.StateDir, o.Logger, o.Config.RelayID.RelayID, parent.Take(process.LockFile))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dir.Close()) }()
		if runtime := o.Config.RuntimeDir; runtime != "" && runtime != o.Config.StateDir {
			if err := dir.UseRuntime(runtime, parent.Take(process.RuntimeLockFile)); err != nil {
				return err
			}
		}
		o.Identity, o.Fresh, o.Files, o.Locks, o.OnReady = dir.Identity, dir.Created, dir.Files(), locks(dir), dir.NoteHolder
		return s.start(ctx, o)
	}
}

// locks returns the locks of a state directory by their names in a hand-over.
func locks(dir *state.Dir) map[string]*os.File {
	all := make(map[string]*os.File)
	lock, runtime := dir.Locks()
	all[process.LockFile] = lock
	if runtime != nil {
		all[process.RuntimeLockFile] = runtime
	}
	return all
}

// start runs relay and API until ctx ends or a drain is over, and prints a line
// for each listener and one when all is ready. With a drain
// timeout, the first signal begins a drain.
func (s streams) start(ctx context.Context, o process.Options) error {
	b := readBuild()
	var a *process.App
	o.Version, o.Revision, o.GoVersion = b.version, b.revision, b.goVersion
	onReady := o.OnReady
	lines := newStartUpLines(s.stdout, o.Config.LogFormat)
	o.OnReady = func() {
		if onReady != nil {
			onReady()
		}
		lines.ready(a.Summary())
	}
	if s.stderr == os.Stderr {
		slog.SetDefault(o.Logger)
		stdlog.SetFlags(0)
		stdlog.SetOutput(libraryLog{o.Logger})
	}
	s.signals.set(actions{log: o.Logger})
	defer s.signals.set(actions{})
	a, err := process.New(o)
	if err != nil {
		return err
	}
	on := actions{
		log: o.Logger, reload: func() { a.ReloadOnSignal(ctx) },
		upgrade: func() { _ = a.Upgrade(ctx) }, // Its error is in the log.
	}
	if (o.Mode == process.Serve || o.Mode == process.Relay) && o.Config.DrainTimeout > 0 {
		on.drain = func() error { return a.DrainFinally(ctx) }
	}
	s.signals.set(on)
	for _, l := range a.Listeners() {
		lines.listening(l)
	}
	return a.Run(ctx)
}

// startUpLines writes the lines about the start-up to standard output, in the format of the log.
type startUpLines struct {
	text io.Writer
	log  *slog.Logger // nil: as text
}

func newStartUpLines(stdout io.Writer, logFormat string) startUpLines {
	if logFormat != logFormatJSON {
		return startUpLines{text: stdout}
	}
	return startUpLines{log: slog.New(slog.NewJSONHandler(stdout, nil))}
}

func (l startUpLines) listening(at process.Listener) {
	if l.log == nil {
		fmt.Fprintln(l.text, "listening", at.Kind, at.Addr)
		return
	}
	l.log.Info("listening", "kind", at.Kind, "address", at.Addr)
}

// ready writes the summary of process.App as attributes.
func (l startUpLines) ready(summary string) {
	if l.log == nil {
		fmt.Fprintln(l.text, "ready", summary)
		return
	}
	var attributes []any
	for word := range strings.FieldsSeq(summary) {
		name, value, _ := strings.Cut(word, "=")
		attributes = append(attributes, name, value)
	}
	l.log.Info("ready", attributes...)
}
