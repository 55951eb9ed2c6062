package bench

import "github.com/ferryrelay/ferry/internal/sock"

// send queues what is due at now, hands it to the kernel, and returns how many
// datagrams that were. Nothing is due any more after the measured interval,
// but what is late is still sent in the drain.
func (g *generator) send(now int64) int {
	n := 0
	switch {
	case now < g.start:
		return 0
	case g.play != nil:
		n = g.sendPlay(now)
	case g.cfg.Rate > 0:
		n = g.sendDue(now)
	case g.cfg.Window > 0 && now < g.end:
		n = g.sendCredits(now)
	}
	if g.binds.rate > 0 {
		n += g.sendBinds(now)
	}
	for i := range g.out {
		if g.out[i].batch.Len() > 0 {
			g.flush(&g.out[i])
		}
	}
	if g.play != nil {
		g.spoken()
	}
	return n
}

// sendDue queues the datagrams of the open loop.
func (g *generator) sendDue(now int64) int {
	for n := range burst {
		due := g.sched.due(g.tick, g.turn)
		if due > now || due >= g.end {
			return n
		}
		g.queue(g.turn, due)
		if g.turn++; g.turn == len(g.flows) {
			g.turn = 0
			g.tick++
		}
	}
	return burst
}

// sendCredits queues the datagrams that the closed loop permits.
func (g *generator) sendCredits(now int64) int {
	for n := range burst {
		i, ok := g.loop.take()
		if !ok {
			return n
		}
		g.flows[i].inFlight++
		g.queue(int(i), now)
	}
	return burst
}

// queue puts the next datagram of a flow into the batch of its socket.
func (g *generator) queue(i int, due int64) {
	f := &g.flows[i]
	o := &g.out[f.socket]
	p := g.portionOf(due)
	if o.batch.Len() == len(o.bufs) || o.load > 0 && p != o.portion {
		g.flush(o)
	}
	buf := o.bufs[o.used][:len(f.prefix)+g.cfg.Payload]
	copy(buf, f.prefix)
	s := stamp{run: g.run, flow: uint32(i), seq: f.seq, due: due}
	s.put(buf[len(f.prefix):])
	if f.cipher != nil {
		buf = g.seal(f, o.bufs[o.used], buf)
	}
	o.batch.Add(f.dst, buf)
	if o.load == 0 {
		o.oldest, o.portion = due, p
	}
	o.used++
	o.load++
	f.seq++
	g.keep.spoke(f.from, due)
}

// flush hands a batch to the kernel.
func (g *generator) flush(o *outgoing) {
	n := o.batch.Len()
	if n == 0 {
		return
	}
	res := o.conn.Send(o.batch)
	g.now.sent += uint64(min(res.Sent, o.load))
	failed := uint64(min(res.Failed, o.load))
	g.count.allQueued += uint64(o.load)
	g.count.allFailed += failed
	if p := o.portion; p != nil && o.load > 0 {
		p.queued += uint64(o.load)
		p.failed += failed
		g.count.sendCalls++
		g.count.sendEntries += uint64(n)
		recordMany(p.lag, sock.Now()-o.oldest, int64(o.load))
	}
	if g.play != nil {
		g.carried(n, res.Failed)
	}
	o.used, o.load, o.portion = 0, 0, nil
}

// add queues a datagram that is none of ours: a keep-alive or a handshake.
func (g *generator) add(ep int, pkt []byte) {
	e := &g.rig.Endpoints[ep]
	o := &g.out[e.Socket]
	if o.batch.Len() == len(o.bufs) {
		g.flush(o)
	}
	o.batch.Add(g.keep.relays[ep], g.rig.encrypt(ep, pkt))
}
