package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/host/state"
	"github.com/google/uuid"
	"github.com/urfave/cli/v3"
)

func clusterCACommand(s streams) *cli.Command {
	return &cli.Command{
		Name: "cluster-ca", Usage: "create the certificates of relays and API processes", ArgsUsage: "DIR [ROLE]",
		Description: `Without ROLE: creates the authority, ca.pem and ca-key.pem, in DIR and overwrites
nothing. With ROLE: creates a certificate of that authority and its key there, NAME.pem
and NAME-key.pem. ROLE is api, relay or admin; admin may drain, kick and close, api may
reserve too. The certificate of a relay contains the id of that relay, which is read
from its state directory, or created there. It needs no running ferry.

With revoke as the ROLE: revokes NAME.pem (--name). The list is part of ca.pem: copy that
to every machine of the fleet.

With --out, the certificate and its key are written there instead of DIR, which may then
be read-only, such as a mounted Secret.

With ca-key.pem, anyone can add members to the fleet: keep it off the machines of the
fleet. Each machine needs ca.pem and its own certificate and key, which it reloads
within 10 s of a change.

Examples:
   ferry ctl cluster-ca /etc/ferry
   ferry ctl cluster-ca /etc/ferry api
   ferry ctl cluster-ca /etc/ferry relay --state-dir /var/lib/ferry
   ferry ctl cluster-ca /etc/ferry relay --relay 6a1c3f5e-0d2b-4c7a-9e8f-112233445566 --name eu-1
   ferry ctl cluster-ca /etc/ferry revoke --name eu-1`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "state-dir", Usage: "read the relay id from the state directory `DIR`"},
			&cli.StringFlag{Name: "relay", Usage: "use the relay `ID`, if its state directory is elsewhere or in use"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the files and in the certificate", DefaultText: "the role"},
			&cli.StringFlag{Name: "out", Usage: "write certificate and key into `OUT`", DefaultText: "DIR"},
			&cli.DurationFlag{Name: "valid", Usage: "validity of the certificate", DefaultText: "10 years for the authority, otherwise 1 year"},
		},
		Action: func(_ context.Context, cmd *cli.Command) error {
			dir, role := cmd.Args().Get(0), rpc.Role(cmd.Args().Get(1))
			switch {
			case dir == "":
				return usage(cmd, errors.New("DIR is missing"))
			case cmd.Args().Len() > 2:
				return usage(cmd, fmt.Errorf("unexpected argument %q", cmd.Args().Get(2)))
			case role == "":
				return makeCA(s.stdout, dir, cmd.Duration("valid"))
			case role == "revoke":
				return revokeCert(s.stdout, cmd, dir)
			}
			return issueCert(s.stdout, cmd, dir, role)
		},
	}
}

// The files of the authority.
const (
	caFile    = "ca.pem"
	caKeyFile = "ca-key.pem"
)

func makeCA(out io.Writer, dir string, valid time.Duration) error {
	ca, err := rpc.NewCA("ferry cluster", valid)
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
	return printFiles(out, cert, key, ca.NotAfter())
}

func issueCert(out io.Writer, cmd *cli.Command, dir string, role rpc.Role) error {
	ca, err := rpc.LoadCA(filepath.Join(dir, caFile), filepath.Join(dir, caKeyFile))
	if err != nil {
		return fmt.Errorf("%w (ferry ctl cluster-ca %s makes one)", err, dir)
	}
	r := rpc.Request{Role: role, Name: cmd.String("name"), Valid: cmd.Duration("valid")}
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
	if out := cmd.String("out"); out != "" {
		dir = out
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	cert, key := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	if err := issued.Write(cert, key); err != nil {
		return err
	}
	return printFiles(out, cert, key, issued.NotAfter())
}

func revokeCert(out io.Writer, cmd *cli.Command, dir string) error {
	name := cmd.String("name")
	if name == "" || name != filepath.Base(name) || name == "ca" {
		return usage(cmd, fmt.Errorf("--name: %q is no name of a certificate's files", name))
	}
	trusted, cert := filepath.Join(dir, caFile), filepath.Join(dir, name+".pem")
	ca, err := rpc.LoadCA(trusted, filepath.Join(dir, caKeyFile))
	if err != nil {
		return err
	}
	if err := ca.Revoke(trusted, cert); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\nrevokes %s\n", trusted, cert)
	return err
}

func printFiles(out io.Writer, cert, key string, end time.Time) error {
	_, err := fmt.Fprintf(out, "%s\n%s\ngood until %s\n", cert, key, end.Format(time.RFC3339))
	return err
}

// relayID returns the relay id of the flags, zero without them.
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
