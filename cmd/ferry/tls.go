package main

import (
	"crypto/tls"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
)

// caFlag is the flag of every command that speaks TLS as a client.
func caFlag(category string) cli.Flag {
	return &cli.StringFlag{Category: category, Name: "ca",
		Usage: "`FILE` (PEM) with certificate authorities to trust besides those of the system"}
}

// trust returns the TLS configuration of a client, nil without --ca.
func trust(cmd *cli.Command) (*tls.Config, error) { return ctl.Trust(cmd.String("ca")) }
