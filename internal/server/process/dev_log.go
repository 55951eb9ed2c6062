package process

import (
	"context"
	"log/slog"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
)

// devLog writes a line of the log of ferry dev for each step of a match, and for what the
// relay refuses and why. It has no state; nil, as in all other modes, writes nothing. Lines
// have join codes and addresses, which the logs of other modes do not.
type devLog struct{ log *slog.Logger }

func newDevLog(mode Mode, log *slog.Logger) *devLog {
	if mode != Dev {
		return nil
	}
	return &devLog{log}
}

// ready reports the addresses of the operator's page and of the documentation.
func (d *devLog) ready(admin string) {
	if d != nil {
		d.log.Info("matches, players and what is refused, in a browser", "url", admin+"/console/", "documentation", admin+"/docs/")
	}
}

func (d *devLog) reserved(e alloc.ReservationEvent) {
	switch {
	case d == nil:
	case e.Request.Role == alloc.RoleHost && !e.Request.Host.IsZero():
		d.log.Info("a player may take the place of its host, not bound yet", "host", e.ID.String(), "former_host", e.Request.Host.String())
	case e.Request.Role == alloc.RoleHost:
		d.log.Info("allocated", "host", e.ID.String(), "max_connections", e.Request.MaxConnections, "region", e.Request.Region)
	default:
		d.log.Info("joined by code, not bound yet", "player", e.ID.String(), "host", e.Request.Host.String())
	}
}

func (d *devLog) codeMade(e engine.CodeEvent) {
	if d != nil {
		d.log.Info("join code", "code", e.Code, "host", e.Host.String())
	}
}

func (d *devLog) bound(e engine.BindEvent) {
	if d == nil {
		return
	}
	text := "bound again, to another address"
	if e.First {
		text = "bound"
	}
	from := "a session of DTLS or WebSocket"
	if e.From.IsValid() {
		from = e.From.String()
	}
	d.log.Info(text, roleKey(e.Role), e.ID.String(), "from", from)
}

// roleKey is the key of an allocation's id, the same in all lines.
func roleKey(role alloc.Role) string {
	if role == alloc.RoleHost {
		return "host"
	}
	return "player"
}

func (d *devLog) linked(e engine.ConnectEvent) {
	if d != nil {
		d.log.Info("linked: the two can send to each other", "player", e.Joiner.String(), "host", e.Host.String())
	}
}

func (d *devLog) unlinked(e engine.DisconnectEvent) {
	if d != nil {
		d.log.Info("link closed", "by", e.From.String(), "to", e.To.String())
	}
}

func (d *devLog) ended(e engine.EndEvent) {
	if d != nil {
		d.log.Info("ended", roleKey(e.Role), e.ID.String(), "because", e.Reason.String())
	}
}

func (d *devLog) migrates(e engine.MigrateEvent) {
	if d != nil {
		d.log.Info("a player has taken the place of its host", "player", e.Joiner.String(), "former_host", e.Host.String(), "host", e.NewHost.String())
	}
}

// refusedCall reports a call of the API that was refused.
func (d *devLog) refusedCall(r httpapi.Refusal) {
	if d != nil {
		d.log.Warn("call refused", "call", r.Call, "status", r.Status, "because", r.Reason)
	}
}

// devLogEvery is how often refused datagrams and handshakes are reported.
const devLogEvery = time.Second

// run reports what the relay refused, until ctx ends.
func (d *devLog) run(ctx context.Context, stats func() engine.Stats, handshakes func() dtls.Stats) {
	before, eventsBefore := stats().Outcomes, handshakes().Events
	repeat(ctx, devLogEvery, func() {
		now := stats().Outcomes
		for _, r := range refusals {
			if n := now[r.outcome] - before[r.outcome]; n > 0 {
				d.log.Warn("datagrams refused", "count", n, "outcome", r.outcome.String(), "because", r.why)
			}
		}
		events := handshakes().Events
		for _, r := range handshakeRefusals {
			if n := events[r.event] - eventsBefore[r.event]; n > 0 {
				d.log.Warn("DTLS handshakes refused", "count", n, "event", r.event, "because", r.why)
			}
		}
		before, eventsBefore = now, events
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

// refusalText says in words why a message was refused.
func refusalText(o engine.Outcome) string {
	for _, r := range refusals {
		if r.outcome == o {
			return r.why
		}
	}
	return o.String()
}

// privateSource says why a message from a private network was refused, and what permits it.
const privateSource = "from a private network, as behind a container's proxy or a NAT that loops back, while a public address is advertised: allow_private_sources permits them"

// refusals are the outcomes by which a match of a developer fails, and what to look at.
var refusals = []struct {
	outcome engine.Outcome
	why     string
}{
	{engine.OutRejected, "a CONNECT_REQUEST found the host full: allocate with a larger maxConnections"},
	{engine.OutErrorVersion, "the message has another version of the protocol than 0"},
	{engine.OutErrorUnauthorized, "a CONNECT_REQUEST with the ticket of another match or player: use the hostConnectionData of your own join"},
	{engine.OutErrorMismatch, "a message from an address that is not bound to the allocation which it names: BIND comes first, from the same socket"},
	{engine.OutErrorNotFound, "the allocation has ended, or that of the host has: allocate or join again"},
	{engine.OutErrorNotConnected, "there is no link between sender and receiver: CONNECT_REQUEST comes first"},
	{engine.OutErrorSelf, "a CONNECT_REQUEST to itself"},
	{engine.DropPlain, "a plain message from the address of a DTLS session"},
	{engine.DropIdentity, "a BIND in the session of another allocation"},
	{engine.DropShort, "shorter than a header: not a message of the relay protocol"},
	{engine.DropSignature, "it does not begin with 0xDA72: not a message of the relay protocol, or DTLS while dtls is off"},
	{engine.DropVersion, "of another version, or a type that no client sends"},
	{engine.DropServerType, "a type that only relays send"},
	{engine.DropUnknownType, "an unknown type"},
	{engine.DropSize, "its size is not the one that its type and length field require"},
	{engine.DropOversize, "a RELAY that is too large: it has more content than max_content, 1400 bytes by default"},
	{engine.DropAcceptMode, "a BIND whose accept mode is not 0"},
	{engine.DropSeal, "connection data that this run of the relay did not issue: allocate or join again"},
	{engine.DropTicket, "a BIND with the host's connection data: bind with your own connectionData, connect with hostConnectionData"},
	{engine.DropMAC, "a BIND whose signature is wrong: HMAC-SHA256 with the allocation's key over all bytes before it"},
	{engine.DropNonce, "a BIND with an old nonce: each new BIND needs a higher one"},
	{engine.DropEndpointHeld, "a BIND from an address at which another player was heard in the last 2 s: use another port"},
	{engine.DropBusy, "the relay was busy: the client repeats it"},
	{engine.DropHostUnbound, "a CONNECT_REQUEST to a host that has not bound yet"},
	{engine.DropPlaceHeld, "a CONNECT_REQUEST to a full host at which the same player was heard in the last 2 s: its old link yields after them"},
	{engine.DropPeerUnbound, "a RELAY to a player that is not bound at the moment"},
	{engine.DropReceiverSize, "a RELAY larger than the receiver's transport carries"},
	{engine.DropRate, "above a limit: of relayed datagrams or bytes (joiner_datagrams, joiner_bytes, host_datagrams, host_bytes), or of new links"},
	{engine.DropUnvalidated, "more than may go over UDP to an address that may be forged: the receiver plays from another network than that of its API call (3 bytes for each one from there, unvalidated_ratio, and 256 kB/s; 2 MB/s to a /24 or /48), or has sent nothing but a BIND (unvalidated_bytes); DTLS has no such limit"},
	{engine.DropRecovering, "the relay has just restarted, and the other side may still come back"},
	{engine.DropForbidden, "from an address that the relay refuses: loopback, link-local, one of its own, a port below 1024, or banned"},
	{engine.DropPrivate, privateSource},
	{engine.DropMuted, "as messages before it that were answered with an ERROR"},
}
