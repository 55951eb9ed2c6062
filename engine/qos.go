package engine

import (
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/table"
	"github.com/ferryrelay/ferry/proto"
)

// qosRate is how many QoS probes of one source prefix are answered: a client
// sends five to each region.
var qosRate = table.Rate{Interval: 50_000, Burst: 40}

// qosGates are shared by prefixes as those of the ERROR budgets are. Any worker
// may use them.
type qosGates [prefixGates]atomic.Uint64

// qos answers a QoS probe with less than was asked.
func (w *worker) qos(now int64, from endpoint.Endpoint, pkt []byte) Outcome {
	m, err := proto.ParseQoSRequest(pkt)
	switch {
	case err != nil:
		return DropSize
	case w.shared.sources.refused(from):
		return DropForbidden
	case !w.shared.budgets.unlimited && !qosRate.Take(&w.shared.qosGates[w.shared.budgets.gate(from)], now):
		return DropRate
	}
	w.out.add(from, m.Response().Append(w.out.reply()))
	return OutQoS
}
