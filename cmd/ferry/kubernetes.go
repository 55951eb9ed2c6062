package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/host/kube"
	"github.com/urfave/cli/v3"
)

func kubernetesCommand(s streams) *cli.Command {
	return &cli.Command{
		Name:  "kubernetes",
		Usage: "prepare a fleet in Kubernetes: for the Job and the init containers of the chart",
		Description: `These commands run in pods: they call the API server of the cluster as the service
account of their pod. The Helm chart in scripts/deploy/helm runs them.

Examples:
   ferry kubernetes authority --help
   ferry kubernetes address --help`,
		Commands: []*cli.Command{authorityCommand(s), addressCommand(s)},
		Action:   showCommands("unknown command %q"),
	}
}

func serviceAccountFlag() cli.Flag {
	return &cli.StringFlag{Name: "service-account", Usage: "read token and ca.crt of the service account in `DIR`", Value: kube.Dir}
}

// The keys of the authorities' Secrets.
const (
	apiCAKey      = "api-ca.pem"
	apiCASecret   = "api-ca-key.pem"
	relayCAKey    = "relay-ca.pem"
	relayCASecret = "relay-ca-key.pem"
)

func authorityCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:  "authority",
		Usage: "make the authorities of a fleet's certificates as Secrets, unless they are there",
		Description: `Makes two authorities: one signs certificates of relays only, the other one those of API
processes and operators only. A node with the key of the first cannot call relays.

The Secret of --apis has ca.pem, which all processes trust, and certificate and key of
both authorities: api-ca.pem, api-ca-key.pem, relay-ca.pem and relay-ca-key.pem. That of
--relays is a copy without api-ca-key.pem. An existing authority is never replaced: run it
as often as you like, and for the relays of each region. The init container of a pod makes
its certificate:
   ferry ctl cluster-ca DIR ROLE --out OUT

Examples:
   ferry kubernetes authority --apis ferry/ferry-authority --relays ferry-relays/ferry-authority`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "apis", Usage: "Secret `NAMESPACE/NAME` for the API processes", Required: true},
			&cli.StringFlag{Name: "relays", Usage: "Secret `NAMESPACE/NAME` for the relays", DefaultText: "none"},
			serviceAccountFlag(),
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			apis, err := kube.ParseSecretName(cmd.String("apis"))
			if err != nil {
				return usage(cmd, fmt.Errorf("--apis: %w", err))
			}
			var relays kube.SecretName
			if text := cmd.String("relays"); text != "" {
				if relays, err = kube.ParseSecretName(text); err != nil {
					return usage(cmd, fmt.Errorf("--relays: %w", err))
				}
			}
			client, err := kube.Open(cmd.String("service-account"))
			if err != nil {
				return err
			}
			defer client.Close()
			authorities, err := ensureAuthorities(ctx, client, apis, s.stdout)
			if err != nil || relays.Name == "" {
				return err
			}
			return copyAuthority(ctx, client, authorities, relays, s.stdout)
		},
	})
}

// ensureAuthorities returns the content of the Secret of the authorities, which it makes if it is
// not there. It prints what it did.
func ensureAuthorities(ctx context.Context, client *kube.Client, name kube.SecretName, out io.Writer) (map[string][]byte, error) {
	data, err := client.Secret(ctx, name)
	if err == nil {
		for _, key := range []string{caFile, apiCAKey, apiCASecret, relayCAKey, relayCASecret} {
			if len(data[key]) == 0 {
				return nil, fmt.Errorf("the Secret %s lacks %s: restore it, or delete it to make new authorities, and restart all pods", name, key)
			}
		}
		fmt.Fprintln(out, "exists", name)
		return data, nil
	}
	if !errors.Is(err, kube.ErrNotFound) {
		return nil, err
	}
	data = map[string][]byte{}
	if data[apiCAKey], data[apiCASecret], err = newAuthority("ferry api", rpc.RoleAPI); err != nil {
		return nil, err
	}
	if data[relayCAKey], data[relayCASecret], err = newAuthority("ferry relays", rpc.RoleRelay); err != nil {
		return nil, err
	}
	data[caFile] = slices.Concat(data[apiCAKey], data[relayCAKey])
	if err := client.CreateSecret(ctx, name, data); err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "created", name)
	return data, nil
}

func newAuthority(name string, role rpc.Role) (cert, key []byte, err error) {
	ca, err := rpc.NewCA(name, 0, role)
	if err != nil {
		return nil, nil, err
	}
	return ca.PEM()
}

// copyAuthority makes the Secret of the relays what it should be. It prints what it did.
func copyAuthority(ctx context.Context, client *kube.Client, authorities map[string][]byte, name kube.SecretName, out io.Writer) error {
	want := map[string][]byte{}
	for _, key := range []string{caFile, relayCAKey, relayCASecret} {
		want[key] = authorities[key]
	}
	got, err := client.Secret(ctx, name)
	done := "exists"
	switch {
	case errors.Is(err, kube.ErrNotFound):
		done, err = "created", client.CreateSecret(ctx, name, want)
	case err == nil && !containsAll(got, want):
		done, err = "updated", client.UpdateSecret(ctx, name, want)
	}
	if err == nil {
		fmt.Fprintln(out, done, name)
	}
	return err
}

// containsAll reports whether a Secret has all keys with these values.
func containsAll(got, want map[string][]byte) bool {
	for key, value := range want {
		if !bytes.Equal(got[key], value) {
			return false
		}
	}
	return true
}

func addressCommand(s streams) *cli.Command {
	return s.command(&cli.Command{
		Name:  "address",
		Usage: "write the addresses of a node for players as settings of ferry relay",
		Description: `Reads the node from the API server and writes its addresses as the setting advertise, one
of each --family. --from is a type of address in the status of the node, or the key of an
annotation. What it holds are IP addresses, or a DNS name, which is resolved once, since
game clients take IP addresses only. With --name the name becomes advertise_name, for wss.

Examples:
   ferry kubernetes address --node $NODE_NAME --from ExternalIP --out /run/ferry/relay.yaml
   ferry kubernetes address --node $NODE_NAME --from ExternalDNS --name --out /run/ferry/relay.yaml
   ferry kubernetes address --node $NODE_NAME --from example.org/relay --family ip4,ip6 --out relay.yaml`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "node", Usage: "`NAME` of the node", Required: true},
			&cli.StringFlag{Name: "from", Usage: "`SOURCE`: ExternalIP, ExternalDNS, InternalIP, or the key of an annotation", Value: "ExternalIP"},
			&cli.StringSliceFlag{Name: "family", Usage: "address `FAMILY`: ip4 or ip6; repeat for both", Value: []string{string(kube.IPv4)}},
			&cli.BoolFlag{Name: "name", Usage: "write the DNS name as advertise_name"},
			&cli.StringFlag{Name: "out", Usage: "`FILE` of the settings", Required: true},
			serviceAccountFlag(),
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			var families []kube.Family
			for _, text := range cmd.StringSlice("family") {
				f := kube.Family(text)
				if f != kube.IPv4 && f != kube.IPv6 {
					return usage(cmd, fmt.Errorf("--family: %q is not ip4 or ip6", text))
				}
				families = append(families, f)
			}
			client, err := kube.Open(cmd.String("service-account"))
			if err != nil {
				return err
			}
			defer client.Close()
			source := cmd.String("from")
			found, err := client.NodeAddresses(ctx, cmd.String("node"), source, families, net.DefaultResolver.LookupNetIP)
			if err != nil {
				return err
			}
			var ips []string
			for _, ip := range found.IPs {
				ips = append(ips, `"`+ip.String()+`"`)
			}
			text := "advertise: [" + strings.Join(ips, ", ") + "]\n"
			if cmd.Bool("name") {
				if found.Name == "" {
					return fmt.Errorf("--name: %s of node %s is no DNS name", source, cmd.String("node"))
				}
				text += "advertise_name: " + found.Name + "\n"
			}
			out := cmd.String("out")
			if err := os.MkdirAll(filepath.Dir(out), 0o700); err != nil {
				return err
			}
			if err := keyfile.Write(out, []byte(text)); err != nil {
				return err
			}
			_, err = fmt.Fprint(s.stdout, text)
			return err
		},
	})
}
