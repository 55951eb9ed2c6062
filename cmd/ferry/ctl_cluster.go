package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/state"
)

func (s streams) ctlClusterCA() *cli.Command {
	return &cli.Command{
		Name: "cluster-ca", Usage: "make the certificates by which relays and API processes know each other", ArgsUsage: "DIR [ROLE]",
		Description: `Without ROLE: makes the authority, ca.pem and ca-key.pem in DIR, and replaces
nothing. With it: makes a certificate of that authority and its key there, NAME.pem
and NAME-key.pem. ROLE is api, relay, or admin, which may drain, kick and close and
reserve nothing; api may do that too.
The certificate of a relay bears the id of that relay, which is in its state
directory, and is made there if there is none yet. It asks no running ferry.

ca-key.pem makes members of the fleet: keep it away from the machines that are in
it. A machine needs ca.pem, and its own certificate and key, which it reads again
within 10 s of a change.

Examples:
   ferry ctl cluster-ca /etc/ferry
   ferry ctl cluster-ca /etc/ferry api
   ferry ctl cluster-ca /etc/ferry relay --state-dir /var/lib/ferry
   ferry ctl cluster-ca /etc/ferry relay --relay 6a1c3f5e-0d2b-4c7a-9e8f-112233445566 --name eu-1`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "state-dir", Usage: "`DIR` of the relay whose certificate it is"},
			&cli.StringFlag{Name: "relay", Usage: "`ID` of that relay, where its state directory is elsewhere, or in use"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the files, and in the certificate for people", DefaultText: "the role"},
			&cli.DurationFlag{Name: "valid", Usage: "how long it is good for", DefaultText: "10 years for the authority, else one"},
		},
		HideHelpCommand: true,
		OnUsageError:    onUsageError,
		Action: func(_ context.Context, cmd *cli.Command) error {
			dir, role := cmd.Args().Get(0), cluster.Role(cmd.Args().Get(1))
			switch {
			case dir == "":
				return usage(cmd, errors.New("DIR is missing"))
			case cmd.Args().Len() > 2:
				return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().Get(2)))
			case role == "":
				return s.makeCA(dir, cmd.Duration("valid"))
			}
			return s.issue(cmd, dir, role)
		},
	}
}

// The files of the authority.
const (
	caFile    = "ca.pem"
	caKeyFile = "ca-key.pem"
)

func (s streams) makeCA(dir string, valid time.Duration) error {
	ca, err := cluster.NewCA("ferry cluster", valid)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	cert, key := filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile)
	if err := ca.Write(cert, key); err != nil {
		return err
	}
	return s.sayMade(cert, key, ca.NotAfter())
}

// issue makes the certificate of one process.
func (s streams) issue(cmd *cli.Command, dir string, role cluster.Role) error {
	ca, err := cluster.LoadCA(filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile))
	if err != nil {
		return fmt.Errorf("%w (ferry ctl cluster-ca %s makes one)", err, dir)
	}
	r := cluster.Request{Role: role, Name: cmd.String("name"), Valid: cmd.Duration("valid")}
	if r.Relay, err = relayID(cmd); err != nil {
		return usage(cmd, err)
	}
	name := r.Name
	if name == "" {
		name = string(role)
	}
	if name != filepath.Base(name) || name == "ca" {
		return usage(cmd, fmt.Errorf("--name: %q is no name for its files", name))
	}
	issued, err := ca.Issue(r)
	if err != nil {
		return err
	}
	cert, key := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	if err := issued.Write(cert, key); err != nil {
		return err
	}
	return s.sayMade(cert, key, issued.NotAfter())
}

func (s streams) sayMade(cert, key string, end time.Time) error {
	_, err := fmt.Fprintf(s.stdout, "%s\n%s\ngood until %s\n", cert, key, end.Format(time.RFC3339))
	return err
}

// relayID returns the id of the relay that the flags name, zero if they name none.
func relayID(cmd *cli.Command) (id alloc.RelayID, err error) {
	text, dir := cmd.String("relay"), cmd.String("state-dir")
	switch {
	case text != "" && dir != "":
		return id, errors.New("--relay and --state-dir: one is enough")
	case text != "":
		parsed, err := uuid.Parse(text)
		if err != nil {
			return id, fmt.Errorf("--relay: %q is no id such as ferry ctl nodes shows", text)
		}
		return alloc.RelayID(parsed), nil
	case dir == "":
		return id, nil
	}
	opened, err := state.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return id, err
	}
	return opened.Identity.Relay, opened.Close()
}
