package metrics

import (
	"maps"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
	"github.com/ferryrelay/ferry/internal/server/players/quota"
)

// Players are the counts of authentication, admission, webhooks and quotas. Parts that
// are not configured are nil, and their metrics are not shown.
type Players struct {
	Identity  *identity.Stats
	Admission *hooks.AdmissionStats
	Webhooks  *hooks.WebhookStats
	Quota     *quota.Stats
}

func writePlayers(p *page, st Players) {
	if st.Identity != nil {
		p.identity(st.Identity)
	}
	if st.Admission != nil {
		p.admission(st.Admission)
	}
	if st.Webhooks != nil {
		p.webhooks(st.Webhooks)
	}
	if st.Quota != nil {
		p.quota(st.Quota)
	}
}

func (p *page) identity(st *identity.Stats) {
	p.family("ferry_jwks_fetches_total", counter, "Fetches of JWKS documents.")
	p.sample("ferry_jwks_fetches_total", st.Fetches-min(st.Failures, st.Fetches), "result", "ok")
	p.sample("ferry_jwks_fetches_total", st.Failures, "result", "failed")
	p.family("ferry_jwks_documents", gauge, "JWKS documents by state: fresh, stale because the last fetch failed, or missing because no fetch has succeeded.")
	p.sample("ferry_jwks_documents", count(st.Documents-st.Keyless-st.Stale), "state", "fresh")
	p.sample("ferry_jwks_documents", count(st.Stale), "state", "stale")
	p.sample("ferry_jwks_documents", count(st.Keyless), "state", "missing")
}

func (p *page) admission(st *hooks.AdmissionStats) {
	p.family("ferry_admission_questions_total", counter, "Admission requests by response: unanswered without a valid one, unasked while a circuit breaker is open.")
	p.sample("ferry_admission_questions_total", st.Allowed, "answer", "allowed")
	p.sample("ferry_admission_questions_total", st.Denied, "answer", "denied")
	p.sample("ferry_admission_questions_total", st.Failed, "answer", "unanswered")
	p.sample("ferry_admission_questions_total", st.Skipped, "answer", "unasked")
	p.single("ferry_admission_resting", gauge,
		"Open circuit breakers of the admission program: one for each project that it does not answer, one for all if it accepts no connection.", count(st.Resting))
}

func (p *page) webhooks(st *hooks.WebhookStats) {
	p.single("ferry_webhook_sent_total", counter, "Events that the receiver acknowledged.", st.Sent)
	p.single("ferry_webhook_retried_total", counter, "Attempts to send an event after the first.", st.Retried)
	p.family("ferry_webhook_dropped_total", counter, "Events that were dropped, by reason: the queue was full, or all attempts failed.")
	p.sample("ferry_webhook_dropped_total", st.Full, "reason", "full")
	p.sample("ferry_webhook_dropped_total", st.Failed, "reason", "failed")
	p.single("ferry_webhook_waiting", gauge, "Events in the queue.", count(st.Waiting))
}

func (p *page) quota(st *quota.Stats) {
	p.family("ferry_quota_refused_total", counter, "Reservations that a quota refused, by limit.")
	for r := range quota.NumRefusals {
		limit := r.String()
		p.sample("ferry_quota_refused_total", st.Refused[r], "limit", limit)
	}
	p.single("ferry_quota_unknown_total", counter, "Reservations that were refused because the usage of their project was unknown.",
		st.Unknown)
}

type Certificate struct {
	Start, End time.Time // when it is valid
	// Fault is why clients refuse it; empty: they do not.
	Fault string
}

const (
	CertificateMissing     = "missing"
	CertificateExpired     = "expired"
	CertificateNotYetValid = "not_yet_valid"
	CertificateOtherName   = "other_name"
)

func writeCertificates(p *page, all map[string]Certificate) {
	p.family("ferry_tls_certificate_end_seconds", gauge, "Time at which a certificate of the API expires, in Unix seconds.")
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names {
		p.seconds("ferry_tls_certificate_end_seconds", float64(all[name].End.Unix()), "name", name)
	}
	p.family("ferry_tls_certificate_start_seconds", gauge, "Time from which a certificate of the API is valid, in Unix seconds.")
	for _, name := range names {
		p.seconds("ferry_tls_certificate_start_seconds", float64(all[name].Start.Unix()), "name", name)
	}
	p.family("ferry_tls_certificate_fault", gauge, "1 if clients refuse a certificate of the API, for a reason.")
	for _, name := range names {
		for _, reason := range []string{CertificateMissing, CertificateExpired, CertificateNotYetValid, CertificateOtherName} {
			p.sample("ferry_tls_certificate_fault", boolGauge(all[name].Fault == reason), "name", name, "reason", reason)
		}
	}
}
