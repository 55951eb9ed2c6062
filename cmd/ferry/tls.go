package main

import (
	"crypto/tls"
	"net/http"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
)

// caFlag is the flag of every command that speaks TLS as a client.
func caFlag(category string) cli.Flag {
	return &cli.StringFlag{Category: category, Name: "ca",
		Usage: "`FILE` (PEM) with certificate authorities to trust besides those of the system"}
}

// trust returns the TLS configuration of a client, nil without --ca.
func trust(cmd *cli.Command) (*tls.Config, error) {
	if cmd.String("ca") == "" {
		return nil, nil
	}
	return ctl.Trust(cmd.String("ca"))
}

// apiClient returns a client of the Allocations API at --api.
func apiClient(cmd *cli.Command) (c api.Client, err error) {
	c.BaseURL = cmd.String("api")
	if c.Token, err = readToken(cmd); err != nil {
		return c, err
	}
	trusted, err := trust(cmd)
	if trusted != nil {
		c.HTTP = &http.Client{
			Timeout: api.DefaultTimeout, Transport: &http.Transport{TLSClientConfig: trusted},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // with the token
		}
	}
	return c, err
}
