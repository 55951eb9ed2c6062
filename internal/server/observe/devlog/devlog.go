// Package devlog writes the log of ferry dev: a line for each step of a match, and for what the
// relay refuses and why. Lines have join codes and addresses, which the logs of other modes do not.
package devlog

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
)

// Log writes the lines. It has no state.
type Log struct{ log *slog.Logger }

// New returns a log of developers that writes to log.
func New(log *slog.Logger) Log { return Log{log} }

// Subscribe logs the events of a stream.
func (d Log) Subscribe(s *events.Stream) {
	s.Ready.Subscribe(d.logReady)
	s.Reservation.Subscribe(d.logReservation)
	s.Code.Subscribe(func(e privateapi.CodeEvent) { d.log.Info("join code", "code", e.Code, "host", e.Host.String()) })
	s.Bind.Subscribe(d.logBind)
	s.Connect.Subscribe(d.logConnect)
	s.Disconnect.Subscribe(func(e engine.DisconnectEvent) { d.log.Info("link closed", "by", e.From.String(), "to", e.To.String()) })
	s.End.Subscribe(func(e engine.EndEvent) {
		d.log.Info("ended", roleKey(e.Role), e.ID.String(), "because", e.Reason.String())
	})
	s.Migrate.Subscribe(d.logMigrate)
	s.Call.Subscribe(d.logCall)
}

func (d Log) logReady(e events.Ready) {
	d.log.Info("matches, players and what is refused, in a browser", "url", e.AdminURL+"/console/", "documentation", e.AdminURL+"/docs/")
}

func (d Log) logReservation(e alloc.ReservationEvent) {
	switch {
	case e.Request.Role == alloc.RoleHost && !e.Request.Host.IsZero():
		d.log.Info("a player may take the place of its host, not bound yet", "host", e.ID.String(), "former_host", e.Request.Host.String())
	case e.Request.Role == alloc.RoleHost:
		d.log.Info("allocated", "host", e.ID.String(), "max_connections", e.Request.MaxConnections, "region", e.Request.Region)
	default:
		d.log.Info("joined by code, not bound yet", "player", e.ID.String(), "host", e.Request.Host.String())
	}
}

func (d Log) logBind(e engine.BindEvent) {
	text := "bound again, to another address"
	if e.First {
		text = "bound"
	}
	d.log.Info(text, roleKey(e.Role), e.ID.String(), "from", cmp.Or(operator.EndpointText(e.From), "unknown"))
}

// roleKey is the key of an allocation's id, the same in all lines.
func roleKey(role alloc.Role) string {
	if role == alloc.RoleHost {
		return "host"
	}
	return "player"
}

func (d Log) logConnect(e engine.ConnectEvent) {
	d.log.Info("linked: the two can send to each other", "player", e.Joiner.String(), "host", e.Host.String())
}

func (d Log) logMigrate(e engine.MigrateEvent) {
	d.log.Info("a player has taken the place of its host", "player", e.Joiner.String(), "former_host", e.Host.String(),
		"host", e.NewHost.String())
}

func (d Log) logCall(r httpapi.Request) {
	if r.Refusal != "" {
		d.log.Warn("call refused", "call", r.Call, "status", r.Status, "because", r.Refusal)
	}
}

// refusalsEvery is how often refused datagrams and handshakes are reported.
const refusalsEvery = time.Second

// Run reports what the relay and DTLS refused, until ctx ends.
func (d Log) Run(ctx context.Context, stats func() engine.Stats, handshakes func() dtls.Stats) {
	before, countsBefore := stats(), handshakes().Events
	periodic.Run(ctx, refusalsEvery, func() {
		now := stats()
		for _, r := range history.Refusals {
			n := now.Outcomes[r.Outcome] + now.Drops[r.Outcome] - before.Outcomes[r.Outcome] - before.Drops[r.Outcome]
			if n > 0 {
				d.log.Warn("datagrams refused", "count", n, "outcome", r.Outcome, "because", r.Why)
			}
		}
		counts := handshakes().Events
		for _, r := range handshakeRefusals {
			if n := counts[r.event] - countsBefore[r.event]; n > 0 {
				d.log.Warn("DTLS handshakes refused", "count", n, "event", r.event, "because", r.why)
			}
		}
		before, countsBefore = now, counts
	})
}

// handshakeRefusals are the events by which the handshake of a developer's client fails.
// That of an allocation which has ended does not: its BIND gets ERROR 4.
var handshakeRefusals = []struct {
	event string // of dtls.Stats
	why   string
}{
	{"drop_suite", "the client offers neither TLS_PSK_WITH_AES_128_GCM_SHA256 nor TLS_PSK_WITH_AES_256_GCM_SHA384"},
	{"drop_identity", "the identity of the pre-shared key is not the allocation's id: 16 bytes, or its text"},
	{"drop_key", "the pre-shared key is not the allocation's key, or the id is not of this relay: allocate or join again"},
	{"drop_attempts", "too many handshakes with a wrong key"},
}
