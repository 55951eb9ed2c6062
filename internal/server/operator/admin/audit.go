package admin

import (
	"log/slog"
	"net/http"
	"strings"
)

// maxAuditTarget bounds the path and query of a line of the audit log.
const maxAuditTarget = 512

// auditChanges records each authorized request that may change something, and each for a
// profile, with its outcome. Refused requests are not recorded, since anyone can make many.
func auditChanges(h http.Handler, log *slog.Logger, a access) http.Handler {
	if log == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, "/debug/")
		if reads || r.URL.Path == canaryPath { // A report comes every few seconds, and changes nothing.
			h.ServeHTTP(w, r)
			return
		}
		by := a.name(r)
		role, _ := a.roleOf(r)
		status := statusWriter{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(&status, r)
		// A sign-in is authorized by its body.
		if signsIn := r.Method == http.MethodPost && r.URL.Path == "/console/login" &&
			status.status == http.StatusOK; role == roleNone && !signsIn {
			return
		}
		target := r.URL.RequestURI()
		if len(target) > maxAuditTarget {
			target = target[:maxAuditTarget] + "..."
		}
		log.Info(r.Method+" "+target, "status", status.status, "by", by, "from", r.RemoteAddr)
	})
}

// name returns the person of a sign-in by OIDC, or else how a request is authorized: by the
// token, a session, or as one from loopback.
func (a access) name(r *http.Request) string {
	if !a.token {
		return "loopback"
	}
	if a.hasToken(r) {
		return "token"
	}
	if v, ok := a.sessions.of(r, a.secret); ok {
		if v.person != "" {
			return v.person
		}
		return v.name()
	}
	return "sign-in"
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
