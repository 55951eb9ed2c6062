package metrics

import "io"

// writeTraces writes the counts of exported spans.
func (m *Metrics) writeTraces(w io.Writer) {
	var p page
	st := m.cfg.Traces()
	p.family("ferry_trace_spans_total", counter, "Spans of traced API calls by result: exported, dropped because the queue was full, or failed because the collector did not accept them.")
	p.sample("ferry_trace_spans_total", st.Exported, "result", "exported")
	p.sample("ferry_trace_spans_total", st.Dropped, "result", "dropped")
	p.sample("ferry_trace_spans_total", st.Failed, "result", "failed")
	p.single("ferry_trace_queue", gauge, "Spans that wait for their export. The queue holds 2048.", count(st.Queued))
	p.flush(w)
}
