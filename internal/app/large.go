package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/internal/endpoint"
)

// maxMessageSizeOver is by how much the setting maxMessageSize of Unity Transport
// exceeds the largest message that a client sends by a way.
var maxMessageSizeOver = map[endpoint.Kind]int{endpoint.KindDTLS: 37, endpoint.KindWS: 14}

// onLargeMessage logs the first message of a match that not every client takes.
// The relay calls it, and it must not block.
func (a *App) onLargeMessage(e engine.LargeMessageEvent) {
	level, text := slog.LevelInfo, "message may be too large for its receiver"
	if e.Dropped {
		text = "message is too large for its receiver"
	}
	if e.Dropped || a.opts.Mode == Dev {
		level = slog.LevelWarn
	}
	size := min(e.Limit, dtls.SafeMessage) + maxMessageSizeOver[e.FromKind]
	a.opts.Logger.Log(context.Background(), level, text,
		"match", e.Match.String(), "sender_way", way(e.FromKind), "receiver_way", way(e.ToKind),
		"size", e.Size, "limit", e.Limit, "dropped", e.Dropped,
		"cure", fmt.Sprintf("NetworkSettings.WithNetworkConfigParameters(maxMessageSize: %d) at senders on %v; Unity Transport 2.0.2 cannot set it", size, way(e.FromKind)))
}

// way is the name of a kind in the settings of a game.
func way(k endpoint.Kind) string {
	if k == endpoint.KindUDP4 || k == endpoint.KindUDP6 {
		return "udp"
	}
	return k.String()
}
