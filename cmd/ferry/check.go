package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ping"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/process"
)

func checkCommand(s streams) *cli.Command {
	return s.settingCommand(&cli.Command{
		Name:  "check",
		Usage: "check settings, this machine and the running process, and say what to change",
		Description: `Prints every setting with its source, secrets hidden. The exit code is 0 if the role
would start with these settings and 1 otherwise, with all reasons. It opens no sockets
and does not read the state directory. It warns of settings that the role ignores.

The role is that of the settings: serve without a store, else that of cluster_cert, else
relay or api by the settings that only one of them uses. The last line names it.

With --machine or --running it prints findings instead. Each line is ok, advice (it works
and could be better), a problem, or was skipped, with what to change. The exit code is 1 if
there is a problem. It changes nothing.

--machine checks what the role needs of this machine: clock, processors, network cards,
buffers and limits of the kernel, space for the state, ports, advertised addresses,
certificates, names, and the store of a fleet. It opens sockets for a moment. In a
container, run it on the host as well.

--running asks the process at the admin address of these settings, with the token and the
certificate in them: whether it is ready and has these settings, how many files it may open,
and whether it can store its state.

--token says whether the API accepts a token of a player or a backend with these settings, and
otherwise why not: signature, issuer, time, audience, project. It reads the token from a file or,
with -, from standard input, and never prints it.

Examples:
   ferry check --config ferry.yaml
   ferry check --config ferry.yaml --machine --running
   ferry check --role api -c ferry.yaml
   ferry check -c ferry.yaml --token -
   ferry check --relay relay.example.org:7777
   FERRY_REGION=eu ferry check -c ferry.yaml --max-connections 20`,
		Flags: append(config.Flags(config.Serve()),
			roleFlag(),
			&cli.BoolFlag{Name: "machine", Usage: "check this machine as well"},
			&cli.BoolFlag{Name: "running", Usage: "check the running process as well"},
			&cli.StringFlag{Name: "token", Usage: "say why the token in `FILE`, or - for standard input, is accepted or not", TakesFile: true},
			&cli.StringFlag{Name: "relay", Usage: "say what the router and the network here do to the relay at `HOST:PORT`"},
			&cli.BoolFlag{Name: "json", Usage: "write the findings of --machine, --running, --token and --relay as a JSON array"}),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			machine, running := cmd.Bool("machine"), cmd.Bool("running")
			token, relay := cmd.String("token"), cmd.String("relay")
			switch {
			case relay != "" && (machine || running || token != ""):
				return usage(cmd, errors.New("--relay goes without --machine, --running and --token"))
			case relay != "":
				all, err := ping.ReachOf(ctx, relay)
				if err != nil {
					return fmt.Errorf("--relay: %w", err)
				}
				return s.printFindings(reachFindings(all), cmd.Bool("json"))
			case token != "" && (machine || running):
				return usage(cmd, errors.New("--token goes without --machine and --running"))
			case cmd.Bool("json") && !machine && !running && token == "":
				return usage(cmd, errors.New("--json is for --machine, --running, --token and --relay"))
			}
			loaded, mode, because, err := loadForRole(cmd, s.environ)
			if _, isUsage := errors.AsType[usageError](err); isUsage {
				return err
			}
			if (machine || running) && loaded.IsZero() || token != "" && err != nil {
				return err
			}
			if token != "" {
				text, err := readTokenFrom(token)
				if err != nil {
					return usage(cmd, err)
				}
				log := slog.New(slog.NewTextHandler(s.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
				return s.printFindings(process.CheckToken(ctx, &loaded.Config, text, log), cmd.Bool("json"))
			}
			if machine || running {
				checker := process.Checker{Config: loaded.Config, Mode: mode, ModeBecause: because, Unloaded: err}
				return s.printFindings(checker.Check(ctx, machine, running), cmd.Bool("json"))
			}
			return s.checkSettings(loaded, mode, because, err)
		},
	})
}

// reachFindings has two lines for each address: UDP and TCP.
func reachFindings(all []ping.Reach) (found []process.Finding) {
	for _, r := range all {
		udp := process.Finding{Subject: "udp " + r.Addr, State: "ok",
			Text: fmt.Sprintf("%d of %d probes were answered, after %.1f ms", r.UDP.Received, r.UDP.Sent, r.UDP.RTT.Seconds()*1e3)}
		tcp := process.Finding{Subject: "tcp " + r.Addr, State: "ok",
			Text: fmt.Sprintf("a WebSocket (%s) opens in %.1f ms", r.Scheme, r.Opened.Seconds()*1e3)}
		switch {
		case r.UDP.Sent == 0 && len(all) > 1:
			udp.State, udp.Text = "skipped", r.UDP.Err.Error()
			tcp.State, tcp.Text = "skipped", "as UDP"
		case r.UDP.Received == 0:
			udp.State, udp.Text = "problem", r.UDP.Err.Error()
			udp.Do = "let the router and firewall here send UDP to this port and take the answers; over wss players get in without UDP"
		case r.UDP.Received < r.UDP.Sent:
			udp.State, udp.Do = "advice", "repeat it, also by wire: games notice what the way loses"
		}
		if r.WebSocket != nil && tcp.State == "ok" {
			tcp.State, tcp.Text = "problem", "no WebSocket opens: "+r.WebSocket.Error()
			tcp.Do = "let the router, firewall and proxy here pass TCP to this port unchanged; games need it for the API, ws and wss"
		}
		found = append(found, udp, tcp)
	}
	return found
}

// readTokenFrom returns the content of a file, or of standard input. The error is without the name, which may be the
// token itself.
func readTokenFrom(name string) (string, error) {
	from := os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", errors.New("--token: there is no such file that can be read: give a file, or - for standard input")
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, 64<<10))
	if err != nil {
		return "", fmt.Errorf("--token: cannot read it: %w", errors.Unwrap(err))
	}
	token, err := keyfile.DecodeSecret(text)
	if err != nil {
		return "", fmt.Errorf("--token: the text %w", err)
	}
	return token, nil
}

// checkSettings prints the settings, and returns why the mode would not start with them. Err is that of
// config.Load.
func (s streams) checkSettings(loaded config.Loaded, mode process.Mode, because string, err error) error {
	if err == nil {
		if err := loaded.Print(s.stdout); err != nil {
			return err
		}
		for _, w := range append(process.Warnings(loaded.Config, mode), process.Unused(loaded, mode)...) {
			fmt.Fprintln(s.stderr, "warning:", w)
		}
		for _, a := range process.Advice(loaded.Config, mode) {
			fmt.Fprintln(s.stderr, "advice:", a)
		}
	}
	if !loaded.IsZero() {
		err = errors.Join(err, process.Check(loaded.Config, mode))
	}
	if all := joined(err); len(all) > 1 {
		for _, e := range all {
			fmt.Fprintln(s.stderr, "error:", errorText(e))
		}
		return fmt.Errorf("%d errors: ferry %s would not start with these settings%s", len(all), mode, because)
	}
	if err == nil {
		_, err = fmt.Fprintf(s.stdout, "# %s would start with these settings%s\n", mode, because)
	}
	return err
}

// printFindings writes a line for each finding, and a second one with what to change, and returns an error if
// there is a problem.
func (s streams) printFindings(all []process.Finding, asJSON bool) error {
	var b strings.Builder
	problems := 0
	for _, f := range all {
		if f.State == "problem" {
			problems++
		}
		fmt.Fprintf(&b, "%-8s %s: %s\n", f.State, f.Subject, strings.ReplaceAll(f.Text, "\n", "\n         "))
		if f.Do != "" {
			fmt.Fprintf(&b, "         -> %s\n", f.Do)
		}
	}
	if asJSON {
		b.Reset()
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		if err := e.Encode(all); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(s.stdout, b.String()); err != nil {
		return err
	}
	if problems > 0 {
		return errProblems
	}
	return nil
}

var errProblems = errors.New("there are problems")

// joined returns the errors that errors.Join has joined, in several steps.
func joined(err error) (all []error) {
	if err == nil {
		return nil
	}
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var texts []string
	for _, e := range several.Unwrap() {
		all, texts = append(all, joined(e)...), append(texts, e.Error())
	}
	if err.Error() != strings.Join(texts, "\n") { // by fmt.Errorf
		return []error{err}
	}
	return all
}

func roleFlag() cli.Flag {
	return &cli.StringFlag{Name: "role", Usage: "check for `ROLE`: serve, relay or api", DefaultText: "the role of the settings"}
}

// loadForRole loads the settings of check, and returns the role to check them for, with the
// reason in parentheses unless the role is an option. With an error that is not of the command line the settings may still be usable, see
// config.Load.
func loadForRole(cmd *cli.Command, environ []string) (l config.Loaded, mode process.Mode, because string, err error) {
	if name := cmd.String("role"); name != "" {
		if mode, err = parseRole(name); err != nil {
			return l, mode, "", usage(cmd, err)
		}
	}
	l, err = config.Load(cmd, environ, config.Serve())
	if !cmd.IsSet("role") {
		mode, because = process.ModeOf(l)
		because = " (" + because + ")"
	}
	return l, mode, because, err
}

// parseRole returns the mode of serve, relay or api by its name.
func parseRole(name string) (process.Mode, error) {
	for _, mode := range []process.Mode{process.Serve, process.Relay, process.API} {
		if mode.String() == name {
			return mode, nil
		}
	}
	return 0, fmt.Errorf("--role: %q is not serve, relay or api", name)
}
