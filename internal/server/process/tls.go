package process

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/server/config"
)

func hasTLS(c *config.Config) bool { return c.TLSCert != "" || c.ACME }

// certificateEvery is the interval at which the certificate files are checked. They are
// usually renewed days before they expire.
const certificateEvery = 10 * time.Second

// certificate is the API's certificate from files, which other programs renew.
type certificate struct {
	cert, key string
	name      string // by which clients ask for it; empty: not known
	logger    *slog.Logger
	current   atomic.Pointer[tls.Certificate]
	files     *keyfile.Watch // the loop's once it runs
}

func loadCertificate(c *config.Config, logger *slog.Logger) (*certificate, error) {
	k := &certificate{
		cert: c.TLSCert, key: c.TLSKey, name: c.AdvertiseName.Host, logger: logger,
		files: keyfile.NewWatch(c.TLSCert, c.TLSKey),
	}
	if err := k.load(); err != nil {
		return nil, fmt.Errorf("tls_cert, tls_key: %w", err)
	}
	return k, nil
}

func (k *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return err
	}
	k.current.Store(&pair)
	return nil
}

// tls returns the TLS configuration of a server with the certificate.
func (k *certificate) tls() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.current.Load(), nil },
	}
}

func (k *certificate) states(now time.Time) map[string]certificateState {
	return map[string]certificateState{k.cert: certificateStateOf(k.current.Load(), k.name, now)}
}

// reload reads the files if they have changed. It logs an invalid pair once and keeps
// the current one: when a half written pair is complete, the files change again.
func (k *certificate) reload() {
	if !k.files.Changed() {
		return
	}
	if err := k.load(); err != nil {
		k.logger.Error("the certificate files have changed and cannot be used: the previous certificate remains in use",
			"tls_cert", k.cert, "tls_key", k.key, "error", err)
		return
	}
	k.logger.Info("the certificate was read again", "tls_cert", k.cert, "not_after", k.current.Load().Leaf.NotAfter)
}
