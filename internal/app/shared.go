package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/config"
	redisstore "github.com/ferryrelay/ferry/internal/store/redis"
)

// Errors of a process that is to be one of a fleet, and lacks what that takes.
var (
	ErrNoStore = errors.New("app: store: relay and api are processes of a fleet, which needs a store: redis://HOST:6379. On one machine ferry serve needs none")
	ErrNoFiles = errors.New("app: cluster_ca, cluster_cert, cluster_key: relays and API processes know each other by certificates of their own, which ferry ctl cluster-ca makes")
)

// storeConfig returns what the settings say about the store of a fleet.
func storeConfig(c *config.Config, log *slog.Logger) (redisstore.Config, error) {
	if c.Store == "" {
		return redisstore.Config{}, ErrNoStore
	}
	cfg := redisstore.Config{URL: string(c.Store), Prefix: c.StorePrefix, Timeout: c.StoreTimeout, Logger: log}
	if c.StorePasswordFile != "" {
		password, err := config.ReadSecret(c.StorePasswordFile)
		if err != nil {
			return cfg, fmt.Errorf("app: store_password_file: %w", err)
		}
		cfg.Password = string(password)
	}
	if c.StoreCA != "" {
		text, err := os.ReadFile(c.StoreCA)
		if err != nil {
			return cfg, fmt.Errorf("app: store_ca: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return cfg, fmt.Errorf("app: store_ca: %s holds no certificate", c.StoreCA)
		}
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	return cfg, nil
}

// newStore returns the store of a fleet, to which it does not connect.
func newStore(c *config.Config, log *slog.Logger) (*redisstore.Store, error) {
	cfg, err := storeConfig(c, log)
	if err != nil {
		return nil, err
	}
	s, err := redisstore.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("app: store: %w", err)
	}
	return s, nil
}

// buildStore makes the client of the store, which is the last to end but for the
// operator's pages: relays say farewell there.
func (a *App) buildStore() (err error) {
	if a.store, err = newStore(&a.opts.Config, a.opts.Logger); err != nil {
		return err
	}
	run := func(ctx context.Context) error {
		return errors.Join(a.store.Run(ctx), a.store.Close())
	}
	a.add(part{"store", run, a.store.Close})
	return nil
}

// clusterFiles returns the files by which the process is known in its fleet.
func clusterFiles(c *config.Config) cluster.Files {
	return cluster.Files{Certificate: c.ClusterCert, Key: c.ClusterKey, CA: c.ClusterCA}
}

// checkFleet refuses settings without which a process cannot be one of a fleet.
// It connects to nothing.
func checkFleet(c *config.Config, mode Mode) error {
	if !mode.member() {
		return nil
	}
	var errs []error
	if s, err := newStore(c, nil); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, s.Close())
	}
	files := clusterFiles(c)
	if files.Certificate == "" || files.Key == "" || files.CA == "" {
		errs = append(errs, ErrNoFiles)
	} else if _, err := tls.LoadX509KeyPair(files.Certificate, files.Key); err != nil {
		errs = append(errs, fmt.Errorf("app: cluster_cert, cluster_key: %w", err))
	} else if mode == API {
		_, err := cluster.NewDialer(cluster.DialerConfig{Files: files})
		errs = append(errs, err)
	}
	if mode == Relay {
		// The port may be missing yet, and where players are told is checked
		// elsewhere.
		_, err := control(c.ClusterAdvertise, c.Cluster.AddrPort, nil)
		if !errors.Is(err, errNowhere) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var errNowhere = errors.New("app: cluster_advertise: API processes have to be told where the relay's cluster listener is")

// control returns where API processes reach the listener at listen: what the
// settings say, else the address itself, else the first that players are told.
func control(advertise string, listen netip.AddrPort, told []alloc.ServerEndpoint) (string, error) {
	port := strconv.Itoa(int(listen.Port()))
	switch {
	case advertise != "":
		host, given, err := net.SplitHostPort(advertise)
		if err != nil {
			host, given = strings.Trim(advertise, "[]"), port
		}
		if n, err := strconv.ParseUint(given, 10, 16); host == "" || err != nil || n == 0 && given != port {
			return "", fmt.Errorf("app: cluster_advertise: %q is neither HOST nor HOST:PORT", advertise)
		}
		return net.JoinHostPort(host, given), nil
	case !listen.Addr().IsUnspecified():
		return listen.String(), nil
	case len(told) == 0:
		return "", errNowhere
	}
	return net.JoinHostPort(told[0].Host, port), nil
}

// hostname names a process that has no id.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "api"
	}
	return name
}
