// Command ferry is the one binary of Ferry, a relay for multiplayer games.
//
// Settings come from flags, FERRY_ variables and a YAML file. Start-up prints
// one line per listener and then one that begins with "ready" (records, with a JSON log) to standard
// output; logs go to standard error. The exit code is 0 on success, 1 on
// failure, and 2 for an invalid command line or invalid settings; ferry bench has its own. The first SIGINT or
// SIGTERM shuts the process down in order, the second one exits at once; with a drain
// timeout, the first one begins a drain. SIGHUP makes serve, relay, api and dev reload
// their settings.
package main

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/urfave/cli/v3"
)

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitNoVerdict and exitBenchUsage are those of ferry bench, for which exitFailed is a condition that
	// does not hold. Callers may repeat a run without a verdict, and not a wrong command line (EX_USAGE of sysexits.h).
	exitNoVerdict  = 2
	exitBenchUsage = 64
)

func main() {
	// The metrics of the process carry their type only if this switch of the
	// library, which is one per process, is on.
	metrics.ExposeMetadata(true)
	received := make(chan os.Signal, 3)
	signal.Notify(received, append(upgradeSignals, os.Interrupt, syscall.SIGTERM)...)
	if !signal.Ignored(syscall.SIGHUP) { // set by nohup
		signal.Notify(received, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := streams{os.Environ(), os.Stdout, os.Stderr, new(signals)}
	go s.signals.handle(received, cancel, s.stderr, func() { os.Exit(exitFailed) })
	code := s.run(ctx, os.Args)
	signal.Stop(received)
	cancel()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func (s streams) run(ctx context.Context, args []string) int {
	err := s.root().Run(ctx, args)
	if err == nil {
		return exitOK
	}
	text, code := printable.Text(errorText(err)), exitFailed
	usage, isUsage := errors.AsType[usageError](err)
	switch bench := len(args) > 1 && args[1] == "bench"; {
	case isUsage && bench:
		code = exitBenchUsage
	case isUsage:
		code = exitUsage
	case bench && !errors.Is(err, errGate):
		code = exitNoVerdict
	}
	switch _, inJSON := errors.AsType[jsonError](err); {
	case inJSON || asksForJSON(args, s.getenv("FERRY_LOG_FORMAT")):
		slog.New(slog.NewJSONHandler(s.stderr, nil)).Error("ferry ends", "error", text, "exit_code", code)
	case isUsage:
		fmt.Fprintf(s.stderr, "ferry: %s\nSee: %s --help\n", text, usage.command)
	default:
		fmt.Fprintf(s.stderr, "ferry: %s\n", text)
	}
	return code
}

const logFormatJSON = "json"

// asksForJSON reports whether a command line that may be wrong elsewhere, or the variable of the
// environment, asks a command with a log for JSON.
func asksForJSON(args []string, variable string) bool {
	if len(args) < 2 || !slices.Contains([]string{"serve", "relay", "api", "dev"}, args[1]) {
		return false
	}
	for i, arg := range args[2:] {
		name, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name != "log-format" {
			continue
		}
		if !ok && i+3 < len(args) {
			value = args[i+3]
		}
		return value == logFormatJSON
	}
	return variable == logFormatJSON
}

// streams is the environment of a command: variables, output and signals.
type streams struct {
	environ        []string
	stdout, stderr io.Writer
	signals        *signals
}

// getenv returns a variable of the environment, "" if it is not set.
func (s streams) getenv(name string) string {
	for _, entry := range s.environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// usageError is an error of the command line or the settings.
type usageError struct {
	command string // the full name of the command
	err     error
}

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usage(cmd *cli.Command, err error) error { return usageError{cmd.FullName(), err} }

// asText returns the same, for commands that print what another machine said. Those of package
// ctl do so by themselves, since they redraw a terminal.
func (s streams) asText() streams {
	s.stdout, s.stderr = printable.NewWriter(s.stdout), printable.NewWriter(s.stderr)
	return s
}

func (s streams) root() *cli.Command {
	text := s.asText()
	root := &cli.Command{
		Name:        "ferry",
		Usage:       "a relay for multiplayer games that speaks the Unity Relay protocol",
		Description: "Begin with ferry demo. The help of each command has examples: ferry COMMAND --help.",
		Version:     readBuild().version,
		Commands: slices.Concat(
			inGroup("to run a relay", demoCommand(s), devCommand(s), serveCommand(s), relayCommand(s), apiCommand(s)),
			inGroup("to operate it", checkCommand(text), controlCommand(s), pingCommand(text), benchCommand(text)),
			inGroup(otherCommands, tokenCommand(s), kubernetesCommand(text), versionCommand(s)),
		),
		// Scripts for bash, zsh, fish and PowerShell: ferry completion SHELL.
		EnableShellCompletion: true,
		ConfigureShellCompletionCommand: func(c *cli.Command) {
			c.Hidden, c.HideHelpCommand, c.OnUsageError, c.Category = false, true, onUsageError, otherCommands
			c.Usage = "print the completion script of a shell"
			c.Description = `Each new shell needs the script:
   source <(ferry completion bash)                                      in ~/.bashrc
   source <(ferry completion zsh)                                       in ~/.zshrc
   ferry completion fish > ~/.config/fish/completions/ferry.fish        once
   ferry completion pwsh > ferry.ps1                                    and run it in the profile`
			for _, shell := range c.Commands {
				shell.Usage = "for " + shell.Name
			}
			c.Action = showCommands("there is no completion script for %q")
		},
		Writer:         s.stdout,
		ErrWriter:      s.stderr,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // run does it
		OnUsageError:   onUsageError,
		Action:         showCommands("unknown command %q"),
	}
	for _, c := range root.Commands {
		prepare(c)
	}
	return root
}

// prepare sets what a command and those below it share.
func prepare(c *cli.Command) {
	c.HideHelpCommand, c.OnUsageError = true, onUsageError
	for _, below := range c.Commands {
		prepare(below)
	}
}

// showCommands is the action of a command that has others. Unknown is the error for a name that none has.
func showCommands(unknown string) cli.ActionFunc {
	return func(_ context.Context, cmd *cli.Command) error {
		if cmd.Args().Present() {
			return unknownCommand(cmd, unknown)
		}
		return cli.ShowSubcommandHelp(cmd)
	}
}

// otherCommands is the group of the command that package cli adds, too.
const otherCommands = "other"

// inGroup puts commands into a group of the help.
func inGroup(name string, commands ...*cli.Command) []*cli.Command {
	for _, c := range commands {
		c.Category = name
	}
	return commands
}

func onUsageError(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	return usage(cmd, plain(cmd, err))
}

// command completes a subcommand that takes no arguments.
func (s streams) command(c *cli.Command) *cli.Command {
	action := c.Action
	c.Action = func(ctx context.Context, cmd *cli.Command) error {
		if cmd.Args().Present() {
			return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().First()))
		}
		return action(ctx, cmd)
	}
	return c
}

// signals holds the actions of SIGINT, SIGTERM and SIGHUP. The first SIGINT or
// SIGTERM begins a drain if the command has one, the next one cancels the command, and
// the one after that exits. SIGHUP reloads the settings of a command that has some;
// otherwise it is the same as SIGTERM.
type signals struct {
	mu sync.Mutex
	actions
}

type actions struct {
	drain   func() error // nil: no drain; if it fails, the command is cancelled
	reload  func()       // nil: SIGHUP is the same as SIGTERM
	upgrade func()       // nil: SIGUSR2 has no effect
	log     *slog.Logger // nil: lines go to standard error
}

func (s *signals) set(a actions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.actions = a
}

func (s *signals) report(stderr io.Writer, line string) {
	s.mu.Lock()
	log := s.log
	s.mu.Unlock()
	if log == nil {
		fmt.Fprintln(stderr, "ferry: "+line)
		return
	}
	log.Error(line)
}

// background returns the action of a signal that does not end the process, and reports
// whether it is one.
func (s *signals) background(sig os.Signal) (do func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sig == syscall.SIGHUP {
		return s.reload, s.reload != nil
	}
	if slices.Contains(upgradeSignals, sig) {
		if s.upgrade == nil {
			return func() {}, true
		}
		return s.upgrade, true
	}
	return nil, false
}

func (s *signals) takeFirst() (do func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do, s.drain = s.drain, nil
	return do
}

// handle runs the actions of signals until the channel is closed.
func (s *signals) handle(received <-chan os.Signal, end func(), stderr io.Writer, exit func()) {
	ending := false
	for sig := range received {
		if do, ok := s.background(sig); ok {
			go do() // must not block the next signal
			continue
		}
		drain := s.takeFirst()
		switch {
		case ending:
			s.report(stderr, "another signal, exiting at once")
			exit()
		case drain == nil:
			ending = true
			end()
		default:
			// In the background, since it must not block the next signal.
			go func() {
				if err := drain(); err != nil {
					s.report(stderr, fmt.Sprintf("drain failed, shutting down: %v", err))
					end()
				}
			}()
		}
	}
}

// newLogger returns the configured logger and its level, which may change later.
// c.LogLevel is already validated.
func newLogger(w io.Writer, c config.Config) (*slog.Logger, *slog.LevelVar) {
	var set slog.Level
	if err := set.UnmarshalText([]byte(c.LogLevel)); err != nil {
		set = slog.LevelInfo
	}
	level := new(slog.LevelVar)
	level.Set(set)
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: forPeople}
	w = printable.NewWriter(w)
	if c.LogFormat == logFormatJSON {
		return slog.New(slog.NewJSONHandler(w, options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}

// forPeople writes durations with their unit and three digits or more, and ids as text in each format.
func forPeople(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		d := a.Value.Duration()
		unit := time.Duration(1)
		for ; d.Abs() >= 10_000*unit; unit *= 10 {
		}
		return slog.String(a.Key, d.Round(unit).String())
	case slog.KindAny:
		_, encodes := a.Value.Any().(encoding.TextMarshaler)
		if v, ok := a.Value.Any().(fmt.Stringer); ok && !encodes {
			return slog.String(a.Key, v.String())
		}
	}
	return a
}

// libraryLog takes what libraries write to package log.
type libraryLog struct{ log *slog.Logger }

// Write makes a line a warning: the process goes on without what the library lacks.
func (l libraryLog) Write(line []byte) (int, error) {
	l.log.Warn("a library reports: " + strings.TrimPrefix(strings.TrimSpace(string(line)), "ERROR: "))
	return len(line), nil
}

func versionCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:        "version",
		Usage:       "print version, commit, Go version and build settings",
		Description: "Example:\n   ferry version",
		Action: func(context.Context, *cli.Command) error {
			_, err := fmt.Fprint(s.stdout, readBuild().String())
			return err
		},
	})
}

type build struct {
	version   string // of the module, "(devel)" or "unknown"
	revision  string // commit, with "+changes" if there were any; "unknown"
	time      string // of the commit, may be empty
	goVersion string
	settings  []string // KEY=VALUE, without those above
}

func readBuild() build {
	b := build{version: "unknown", revision: "unknown", goVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.version = info.Main.Version
	}
	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs":
		case "vcs.revision":
			b.revision = s.Value
		case "vcs.time":
			b.time = s.Value
		case "vcs.modified":
			changed = s.Value == "true"
		default:
			b.settings = append(b.settings, s.Key+"="+s.Value)
		}
	}
	if changed {
		b.revision += "+changes"
	}
	return b
}

func (b build) String() string {
	var t strings.Builder
	fmt.Fprintf(&t, "ferry %s\n", b.version)
	fmt.Fprintln(&t, strings.TrimSpace("commit "+b.revision+" "+b.time))
	fmt.Fprintf(&t, "%s %s/%s\n", b.goVersion, runtime.GOOS, runtime.GOARCH)
	for _, s := range b.settings {
		fmt.Fprintln(&t, s)
	}
	return t.String()
}
