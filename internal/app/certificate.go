package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/keyfile"
)

// secured reports whether the API's port speaks TLS.
func secured(c *config.Config) bool { return c.TLSCert != "" || len(c.ACMEDomains) > 0 }

// secure returns the settings of the API's TLS, nil for plain HTTP.
func (a *App) secure() *tls.Config {
	switch {
	case a.certificate != nil:
		return a.certificate.tls()
	case a.issued != nil:
		return a.issued.tls()
	}
	return nil
}

// certificateEvery is the time between two looks at the files of the
// certificate: whoever renews one does so days before it is due.
const certificateEvery = 10 * time.Second

// certificate is the API's certificate, which follows its files: programs that
// renew it know nothing of us.
type certificate struct {
	cert, key string
	logger    *slog.Logger
	every     time.Duration
	current   atomic.Pointer[tls.Certificate]
	files     *keyfile.Watch // the loop's once it runs
}

// loadCertificate reads the certificate that the settings name, nil if there is
// none.
func loadCertificate(c *config.Config, logger *slog.Logger) (*certificate, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	k := &certificate{
		cert: c.TLSCert, key: c.TLSKey, logger: logger, every: certificateEvery,
		files: keyfile.NewWatch(c.TLSCert, c.TLSKey),
	}
	if err := k.load(); err != nil {
		return nil, fmt.Errorf("app: tls_cert, tls_key: %w", err)
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

// tls returns the settings of a server that has the certificate.
func (k *certificate) tls() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.current.Load(), nil },
	}
}

// run reads the files again when they have changed, until ctx ends.
func (k *certificate) run(ctx context.Context) {
	ticker := time.NewTicker(k.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.reload()
		}
	}
}

// reload reads the files if they have changed since the last look. A pair that
// is broken, or half written, is complained of once and changes nothing: the
// rest of it is another change.
func (k *certificate) reload() {
	if !k.files.Changed() {
		return
	}
	if err := k.load(); err != nil {
		k.logger.Error("the certificate has changed and cannot be used: the one before stays in force",
			"tls_cert", k.cert, "tls_key", k.key, "error", err)
		return
	}
	k.logger.Info("the certificate was read again", "tls_cert", k.cert, "not_after", k.current.Load().Leaf.NotAfter)
}
