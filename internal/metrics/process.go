package metrics

import "io"

// Process is what the process knows besides the relay, all of one moment.
type Process struct {
	// MaxAllocations is how many allocations the relay holds at once.
	MaxAllocations int
	// Awaited is how many allocations of the run before may yet come back, and
	// Lost how many did not.
	Awaited int
	Lost    uint64
	// Storing is set while the state file takes what a restart must know.
	Storing bool
	// ForeignSockets is how many sockets of other processes are on the UDP port.
	ForeignSockets int
	// MemoryLimit is in bytes, 0 if it is not known. While MemoryTight is set
	// allocations are refused; MemoryRefused counts them.
	MemoryLimit   int64
	MemoryTight   bool
	MemoryRefused uint64
	// RefusedTotal and RefusedAddress count connections to the API that were
	// closed unread, for the limit of all and for that of one address.
	RefusedTotal, RefusedAddress uint64
	// RefusedHeader counts connections of a proxy that did not begin with a PROXY
	// header.
	RefusedHeader uint64
}

// writeHeld writes what belongs to a relay.
func (m *Metrics) writeHeld(w io.Writer) {
	st := m.cfg.Process()
	var p page
	p.single("ferry_max_allocations", gauge, "Allocations that the relay holds at most.", count(st.MaxAllocations))
	p.single("ferry_recovery_awaited", gauge, "Allocations of the run before that may yet come back.", count(st.Awaited))
	p.single("ferry_recovery_lost_total", counter, "Allocations of the run before that did not come back.", st.Lost)
	p.single("ferry_ledger_storing", gauge, "1 while the state file takes what a restart must know.", truth(st.Storing))
	p.single("ferry_foreign_sockets", gauge, "Sockets of other processes on the UDP port.", count(st.ForeignSockets))

	p.single("ferry_memory_limit_bytes", gauge, "Memory that the process may use; 0 if that is not known.", count(int(st.MemoryLimit)))
	p.single("ferry_memory_short", gauge, "1 while allocations are refused, since the memory is short.", truth(st.MemoryTight))
	p.family("ferry_allocations_refused_total", counter, "Allocations that were refused by this process, by reason.")
	p.sample("ferry_allocations_refused_total", st.MemoryRefused, "reason", "memory")
	p.flush(w)
}

func (m *Metrics) writeProcess(w io.Writer) {
	st := m.cfg.Process()
	var p page
	p.family("ferry_http_connections_refused_total", counter, "Connections to the API that were closed unread, by the limit they met, or for want of a PROXY header.")
	p.sample("ferry_http_connections_refused_total", st.RefusedTotal, "reason", "total")
	p.sample("ferry_http_connections_refused_total", st.RefusedAddress, "reason", "address")
	p.sample("ferry_http_connections_refused_total", st.RefusedHeader, "reason", "proxy_header")
	p.flush(w)
}
