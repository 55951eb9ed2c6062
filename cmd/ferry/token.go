package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
)

func tokenCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:  "token",
		Usage: "create a player's token for development",
		Description: `Prints a JSON Web Token, signed with a secret that the relay also has (HS256).
Whoever has the secret makes tokens for every project, so it belongs on a
developer's machine; players of a game get theirs from an issuer of its own.

Examples:
   openssl rand -hex 32 > dev.key
   ferry token --key-file dev.key --project my-game --environment test --player anna

   # ferry.yaml
   issuers:
     - preset: development
       hs256_key_file: dev.key

   curl -s http://127.0.0.1:7777/v1/allocate -d '{"maxConnections": 4}' \
     -H "Authorization: Bearer $(ferry token --key-file dev.key --project my-game --environment test --player anna)"`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "key-file", Usage: "`FILE` with the secret, one line of 32 characters or more"},
			&cli.StringFlag{Name: "project", Usage: "`NAME` of the project"},
			&cli.StringFlag{Name: "environment", Usage: "`NAME` of the environment"},
			&cli.StringFlag{Name: "player", Usage: "`NAME` of the player"},
			&cli.StringFlag{Name: "kind", Usage: "`KIND`: player or server", Value: "player"},
			&cli.StringSliceFlag{Name: "regions", Usage: "`ID` of a region in which the player may have hosts; default: all of the project"},
			&cli.DurationFlag{Name: "for", Usage: "validity of the token", Value: 24 * time.Hour},
			&cli.StringFlag{Name: "issuer", Usage: "`NAME` of the issuer", Value: identity.DevelopmentIssuer},
			&cli.StringFlag{Name: "audience", Usage: "`NAME` of the audience", Value: identity.DevelopmentAudience},
		},
		Action: func(_ context.Context, cmd *cli.Command) error {
			text, err := mintToken(cmd)
			if err != nil {
				return usage(cmd, err)
			}
			_, err = fmt.Fprintln(s.stdout, text)
			return err
		},
	})
}

func mintToken(cmd *cli.Command) (string, error) {
	for _, flag := range []string{"key-file", "project", "environment", "player"} {
		if cmd.String(flag) == "" {
			return "", fmt.Errorf("--%s is required", flag)
		}
	}
	kind := cmd.String("kind")
	if kind != "player" && kind != "server" {
		return "", errors.New("--kind: is neither player nor server")
	}
	secret, err := config.ReadSecret(cmd.String("key-file"))
	if err != nil {
		return "", fmt.Errorf("--key-file: %w", err)
	}
	return identity.Mint(identity.MintRequest{
		Secret: []byte(secret),
		Identity: identity.Identity{
			Tenant: alloc.Tenant{Project: cmd.String("project"), Environment: cmd.String("environment")},
			Player: cmd.String("player"), Server: kind == "server", Regions: cmd.StringSlice("regions"),
		},
		Valid: cmd.Duration("for"), Issuer: cmd.String("issuer"), Audience: cmd.String("audience"), Now: time.Now(),
	})
}
