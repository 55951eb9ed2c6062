package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/observe/metrics"
)

// certificateFault is why clients refuse a certificate. The zero value: they do not.
type certificateFault struct {
	reason string // the label of the metric
	text   string // follows the name of the certificate
	do     string
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

// namesIn returns the names in a certificate.
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

// certificateWarnings returns sentences about certificate files that clients refuse.
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

// certificates returns the state of the API's certificates, by file or name.
func (a *App) certificates() map[string]metrics.Certificate {
	all, now := make(map[string]metrics.Certificate), time.Now()
	for name, f := range a.certificateFaults(now) {
		all[name] = metrics.Certificate{Fault: f.reason}
	}
	for name, end := range a.certificateEnds() {
		all[name] = metrics.Certificate{End: end, Fault: all[name].Fault}
	}
	return all
}

// certificateFaults returns the fault of each certificate of the API, by file or name.
func (a *App) certificateFaults(now time.Time) map[string]certificateFault {
	all := make(map[string]certificateFault)
	if k := a.certificate; k != nil {
		all[k.cert] = certificateFaultOf(k.current.Load(), a.opts.Config.AdvertiseName.Host, now)
	}
	if a.acme != nil {
		for _, name := range a.acme.names {
			all[name] = certificateFaultOf(a.acme.current[name].Load(), name, now)
		}
	}
	return all
}

// watchCertificates reads changed files, and logs a fault of a certificate of the API once,
// and its end, whatever brought it: the time, the clock, a changed file or ACME.
func (a *App) watchCertificates(ctx context.Context) {
	known := make(map[string]certificateFault)
	periodic.Run(ctx, a.certificatesEvery, func() {
		if a.certificate != nil {
			a.certificate.reload()
		}
		a.logCertificates(known)
	})
}

func (a *App) logCertificates(known map[string]certificateFault) {
	faults := a.certificateFaults(time.Now())
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		f := faults[name]
		switch {
		case f == known[name] || f.reason == metrics.CertificateMissing: // ACME logs why.
		case f.reason != "":
			a.opts.Logger.Error("the certificate is refused by clients: wss and the API do not work for them", "certificate", name, "because",
				"it "+f.text, "do", f.do)
		case known[name].reason != "":
			a.opts.Logger.Info("the certificate is valid again", "certificate", name)
		}
		known[name] = f
	}
}
