package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
)

// certificateFault is why clients refuse a certificate. The zero value: they do not.
type certificateFault struct {
	reason string // the label of the metric
	text   string // follows the name of the certificate
	do     string
}

// certificateState is the time of a certificate, and why clients refuse it. Without a certificate, it
// ended with the epoch.
type certificateState struct {
	start, end time.Time
	fault      certificateFault
}

func certificateStateOf(c *tls.Certificate, name string, now time.Time) certificateState {
	epoch := time.Unix(0, 0)
	s := certificateState{epoch, epoch, certificateFaultOf(c, name, now)}
	if c != nil {
		s.start, s.end = c.Leaf.NotBefore, c.Leaf.NotAfter
	}
	return s
}

// endsSoon reports whether a certificate should have been renewed. One of six days by ACME is renewed when a third
// of its time is left.
func endsSoon(start, end, now time.Time) bool {
	left := end.Sub(now)
	return left < certificateWarning && left < end.Sub(start)/4
}

// certificateFaultOf returns the fault of a certificate and the intermediate ones that are
// sent with it, for clients that ask for a name. An empty name: it is not known.
func certificateFaultOf(c *tls.Certificate, name string, now time.Time) (f certificateFault) {
	if c == nil {
		return certificateFault{metrics.CertificateMissing, "there is none", "the log says why it was not issued"}
	}
	for i, der := range c.Certificate {
		x := c.Leaf
		if i > 0 || x == nil {
			var err error
			if x, err = x509.ParseCertificate(der); err != nil {
				continue // The handshake sends it, and clients may not need it.
			}
		}
		of := ""
		if i > 0 {
			of = fmt.Sprintf("certificate %d of its chain ", i+1)
		}
		switch {
		case !now.Before(x.NotAfter):
			return certificateFault{metrics.CertificateExpired, of + "expired at " + x.NotAfter.UTC().Format(time.RFC3339),
				"renew it, or check the clock; ferry reads a changed file within 10 s"}
		case now.Before(x.NotBefore):
			return certificateFault{metrics.CertificateNotYetValid, of + "is not valid before " + x.NotBefore.UTC().Format(time.RFC3339),
				"check the clock of this machine"}
		case i == 0 && name != "" && x.VerifyHostname(name) != nil:
			return certificateFault{metrics.CertificateOtherName, fmt.Sprintf("is not for the name %s (advertise_name), but for %s",
				name, namesIn(x)),
				"get one for the name, or change advertise_name"}
		}
	}
	return certificateFault{}
}

func namesIn(x *x509.Certificate) string {
	names := slices.Clone(x.DNSNames)
	for _, ip := range x.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no name"
	}
	return strings.Join(names, ", ")
}

func certificateWarnings(c *config.Config) (all []string) {
	for _, file := range []struct{ setting, cert, key, name string }{
		{"tls_cert", c.TLSCert, c.TLSKey, c.AdvertiseName.Host},
		{"cluster_cert", c.ClusterCert, c.ClusterKey, ""},
	} {
		if file.cert == "" {
			continue
		}
		pair, err := tls.LoadX509KeyPair(file.cert, file.key)
		if err != nil {
			continue // Check returns the error.
		}
		if f := certificateFaultOf(&pair, file.name, time.Now()); f.reason != "" {
			all = append(all, fmt.Sprintf("%s: %s %s, so clients refuse it: %s", file.setting, file.cert, f.text, f.do))
		}
	}
	return all
}

// certificates are those of the API: one from files, or those that ACME brings. The fields are
// fixed by newCertificates.
type certificates struct {
	file  *certificate      // nil: by ACME
	acme  *acmeCertificates // nil: from files
	every time.Duration     // how often their faults are looked for
	log   *slog.Logger
}

// newCertificates returns the certificates of the settings, nil if there are none. It requests and
// writes nothing before run. log is nil if the settings are only checked.
func newCertificates(c *config.Config, mode Mode, log *slog.Logger) (_ *certificates, err error) {
	k := &certificates{every: certificateEvery, log: log}
	switch {
	case c.TLSCert != "":
		k.file, err = loadCertificate(c, log)
	case c.ACME:
		k.acme, err = newACME(c, mode, log)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// tls returns the settings of a server with the certificates, nil for plain HTTP without any.
func (k *certificates) tls() *tls.Config {
	switch {
	case k == nil:
		return nil
	case k.acme != nil:
		return k.acme.tls()
	}
	return k.file.tls()
}

func (k *certificates) states(now time.Time) map[string]certificateState {
	switch {
	case k == nil:
		return nil
	case k.acme != nil:
		return k.acme.states(now)
	}
	return k.file.states(now)
}

func (k *certificates) metrics() map[string]metrics.Certificate {
	all := make(map[string]metrics.Certificate)
	for name, state := range k.states(time.Now()) {
		all[name] = metrics.Certificate{Start: state.start, End: state.end, Fault: state.fault.reason}
	}
	return all
}

// prepare is a [prepare] for changed files. The loop that watches them then finds no change.
func (k *certificates) prepare(*config.Config, []string) (apply, error) {
	if k.file == nil {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(k.file.cert, k.file.key)
	if err != nil {
		return nil, fmt.Errorf("tls_cert, tls_key: %w", err)
	}
	return func(_ context.Context, done *operator.ReloadResult) error {
		k.file.current.Store(&pair)
		done.Notes = append(done.Notes, fmt.Sprintf("%s was read again: good until %s", k.file.cert, pair.Leaf.NotAfter.Format(time.RFC3339)))
		return nil
	}, nil
}

// run brings certificates by ACME, reads changed files, and logs a fault of a certificate once,
// and its end, whatever brought it: the time, the clock, a changed file or ACME.
func (k *certificates) run(ctx context.Context) {
	var fetching sync.WaitGroup
	defer fetching.Wait()
	if k.acme != nil {
		fetching.Go(func() { k.acme.run(ctx) })
	}
	known := make(map[string]certificateFault)
	periodic.Run(ctx, k.every, func() {
		if k.file != nil {
			k.file.reload()
		}
		k.logFaults(known)
	})
}

func (k *certificates) logFaults(known map[string]certificateFault) {
	states := k.states(time.Now())
	for _, name := range slices.Sorted(maps.Keys(states)) {
		f := states[name].fault
		switch {
		case f == known[name] || f.reason == metrics.CertificateMissing: // ACME logs why.
		case f.reason != "":
			k.log.Error("the certificate is refused by clients: wss and the API do not work for them", "certificate", name, "because",
				"it "+f.text, "do", f.do)
		case known[name].reason != "":
			k.log.Info("the certificate is valid again", "certificate", name)
		}
		known[name] = f
	}
}
