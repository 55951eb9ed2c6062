//go:build mutants

package mutants

// The path of a forwarded datagram.
var inData = []mutant{
	{
		rule: "a truncated datagram is not handled",
		file: "engine/worker.go",
		old:  "if truncated {", now: "if truncated && len(pkt) == 0 {",
		by: reason("truncated"),
	},
	{
		rule: "a datagram without a source is not handled",
		file: "engine/worker.go",
		old:  "if from.IsZero() {", now: "if from.IsZero() && len(pkt) == 0 {",
		by: reason("source"),
	},
	{
		rule: "who relays is bound to From, not to To",
		file: "engine/relay.go",
		old:  "sender.ID != m.From {", now: "sender.ID != m.To {",
		by: reason("relayed/to_host"),
	},
	{
		rule: "who relays is bound to From at all",
		file: "engine/relay.go",
		old:  "if !w.shared.table.Find(from, &sender) || sender.ID != m.From {", now: "if !w.shared.table.Find(from, &sender) {",
		by: reason("error_mismatch/spoofed_id"),
	},
	{
		rule: "a PING is echoed to its owner only",
		file: "engine/relay.go",
		old:  "if !w.shared.table.Find(from, &sender) || sender.ID != m.ID {", now: "if !w.shared.table.Find(from, &sender) {",
		by: model,
	},
	{
		rule: "the last datagrams are counted when nothing more comes",
		file: "engine/worker.go",
		old:  "\t\t\tw.publish()\n\t\t\tcontinue", now: "\t\t\t_ = n\n\t\t\tcontinue",
		by: engineTest("TestLastCounts"),
	},
	{
		rule: "a RELAY of 1400 bytes is forwarded",
		file: "engine/relay.go",
		old:  "if len(m.Payload) > w.shared.rules.maxContent {", now: "if len(m.Payload) >= w.shared.rules.maxContent {",
		by: reason("relayed/largest"),
	},
	{
		rule: "a RELAY above the limit is not forwarded",
		file: "engine/relay.go",
		old:  "if len(m.Payload) > w.shared.rules.maxContent {", now: "if len(m.Payload) > w.shared.rules.maxContent+1 {",
		by: reason("oversize"),
	},
	{
		rule: "nothing goes to a peer without an endpoint",
		file: "engine/relay.go",
		old:  "if peer.Endpoint.IsZero() {", now: "if peer.Endpoint == from {",
		by: reason("peer_unbound"),
	},
	{
		rule: "the largest message that the receiver's way carries is forwarded",
		file: "engine/large.go",
		old:  "size > most {", now: "size >= most {",
		by: reason("relayed/largest_that_its_receiver's_way_carries"),
	},
	{
		rule: "what is larger than the receiver's way carries is dropped",
		file: "engine/large.go",
		old:  "dropped, limit = true, most", now: "limit = most",
		by: reason("receiver_size"),
	},
	{
		rule: "what is dropped for its size counts for its receiver",
		file: "engine/large.go",
		old:  "w.shared.table.LargeMessages(peer.Handle).AddDrop()", now: "w.shared.table.LargeMessages(sender.Handle).AddDrop()",
		by: model,
	},
	{
		rule: "a large message is reported once per match",
		file: "internal/table/stamp.go",
		old:  "return !l.reported.Load() && l.reported.CompareAndSwap(false, true)", now: "return l.reported.Swap(true) || true",
		by: model,
	},
	{
		rule: "a report that found no room is made by the next large message",
		file: "engine/large.go",
		old:  "match.ReturnReport()", now: "_ = match",
		by: engineTest("TestLargeReportRetried"),
	},
	{
		rule: "a slot that is used again has no large messages",
		file: "internal/table/writer.go",
		old:  "t.LargeMessages(h).reset()", now: "_ = h",
		by: model,
	},
	{
		rule: "an allocation relays no more than its quota",
		file: "engine/relay.go",
		old:  "if !own.Meter(w.shared.live.Load().quota(sender.Role), len(pkt), now) {", now: "if !own.Meter(w.shared.live.Load().quota(sender.Role), 0, now) && len(pkt) == 0 {",
		by: reason("rate/relay"),
	},
	{
		rule: "an unproven peer gets no more than its allowance",
		file: "engine/relay.go",
		old:  "if !theirs.Spend(len(pkt)) {", now: "if !theirs.Spend(0) {",
		by: reason("unproven"),
	},
	{
		rule: "what a player receives does not count as sent",
		file: "engine/relay.go",
		old:  "theirs.Active(t)", now: "theirs.Heard(t)",
		by: model,
	},
	{
		rule: "what a player receives keeps it for a while",
		file: "engine/relay.go",
		old:  "theirs.Active(t)", now: "_ = t",
		by: model,
	},
	{
		rule: "a RELAY over a link keeps the link",
		file: "engine/relay.go",
		old:  "table.Relayed(sender.Role, own, theirs, t)", now: "_ = t",
		by: model,
	},
	{
		rule: "a RELAY without a link earns ERROR 5 in the sender's name",
		file: "engine/refuse.go",
		old:  "return w.error(sender.Endpoint, sender.ID, proto.ErrorNotConnected)", now: "return w.error(sender.Endpoint, to, proto.ErrorNotConnected)",
		by: model,
	},
	{
		rule: "a fault of ours costs one datagram",
		file: "engine/worker.go",
		old:  "\t\tw.next++", now: "\t\tw.next = n",
		by: engineTest("TestFault"),
	},
	{
		rule: "every datagram is counted",
		file: "engine/worker.go",
		old:  "if o != handedOver {", now: "if o != handedOver && !o.Dropped() {",
		by: model,
	},
}
