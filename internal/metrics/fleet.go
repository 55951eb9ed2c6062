package metrics

import (
	"io"
	"maps"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/fleet"
	redisstore "github.com/ferryrelay/ferry/internal/store/redis"
)

// writeFleet writes what a process of a fleet knows of the others.
func (m *Metrics) writeFleet(w io.Writer) {
	var p page
	if m.cfg.Store != nil {
		p.store(m.cfg.Store())
	}
	if m.cfg.Announcer != nil {
		p.announcer(m.cfg.Announcer())
	}
	if m.cfg.Cluster != nil {
		p.cluster(m.cfg.Cluster())
	}
	if m.cfg.Fleet != nil {
		p.fleet(m.cfg.Fleet())
	}
	if m.cfg.Dialer != nil {
		p.dialer(m.cfg.Dialer())
	}
	p.flush(w)
}

func (p *page) store(st redisstore.Stats) {
	p.family("ferry_store_calls_total", counter, "Calls to the store: those that failed, those that were turned away while it is taken for gone, and the others.")
	p.sample("ferry_store_calls_total", st.Calls-min(st.Failed, st.Calls), "result", "ok")
	p.sample("ferry_store_calls_total", st.Failed, "result", "failed")
	p.sample("ferry_store_calls_total", st.Refused, "result", "refused")
	p.single("ferry_store_away", gauge, "1 while the store is taken for gone.", truth(st.Open))
	p.single("ferry_store_outages_total", counter, "Times in which the store was taken for gone.", st.Opened)
	p.single("ferry_store_damaged_total", counter, "Values in the store that no ferry wrote.", st.Damaged)
	p.single("ferry_store_connections", gauge, "Open connections to the store.", count(st.Connections))
	p.single("ferry_store_connections_idle", gauge, "Of these, those in use by nobody.", count(st.Idle))
	p.family("ferry_store_forgotten_total", counter, "Hosts that have ended: those whose join code was dropped, and those whose code is left to end by itself, since too many waited.")
	p.sample("ferry_store_forgotten_total", st.Forgotten, "result", "dropped")
	p.sample("ferry_store_forgotten_total", st.Overflow, "result", "left")
}

func (p *page) announcer(st fleet.AnnouncerStats) {
	p.single("ferry_announcer_beats_total", counter, "Heartbeats that the store has taken.", st.Heartbeats)
	p.single("ferry_announcer_failed_total", counter, "Calls of the announcer that failed.", st.Failed)
	p.single("ferry_announcer_holds_total", counter, "Calls that told the store of hosts.", st.Holds)
	p.single("ferry_announcer_held_total", counter, "Hosts that it was told of in them, each time anew.", st.Held)
	p.single("ferry_announcer_drops_total", counter, "Calls that told the store of ends.", st.Drops)
	p.family("ferry_announcer_untold_total", counter, "Hosts and ends of which the store is not told, since there were too many to remember.")
	p.sample("ferry_announcer_untold_total", st.HostsDropped, "what", "hosts")
	p.sample("ferry_announcer_untold_total", st.EndsDropped, "what", "ends")
	p.single("ferry_announcer_ends", gauge, "Ends that the store is yet to be told of.", count(st.Ends))
	p.single("ferry_announcer_hosts", gauge, "Hosts that the store is told of.", count(st.Hosts))
	p.single("ferry_announcer_lost_codes_total", counter, "Join codes that lead to another host, since the store had lost them.", st.Lost)
}

func (p *page) cluster(st cluster.ServerStats) {
	p.single("ferry_cluster_answered_total", counter, "Calls of API processes that were served.", st.Answered)
	p.family("ferry_cluster_refused_total", counter, "Calls of API processes that were not served, by the reason.")
	for _, name := range slices.Sorted(maps.Keys(st.Refused)) {
		p.sample("ferry_cluster_refused_total", st.Refused[name], "reason", name)
	}
	p.single("ferry_cluster_reserved_total", counter, "Reservations that were made for API processes.", st.Reserved)
	p.single("ferry_cluster_repeated_total", counter, "Calls that were answered with the outcome of an earlier one with the same key.", st.Repeated)
	p.single("ferry_cluster_cancelled_total", counter, "Keys that API processes cancelled.", st.Cancelled)
	p.single("ferry_cluster_operated_total", counter, "Calls of operators that were done.", st.OperatorCalls)
	p.single("ferry_cluster_running", gauge, "Reservations under way.", count(st.Running))
	p.single("ferry_cluster_remembered", gauge, "Outcomes that are remembered for calls that are repeated.", count(st.Remembered))
	p.single("ferry_cluster_forgotten_total", counter, "Outcomes that were forgotten before their time, since there were too many.", st.Forgotten)
	p.single("ferry_cluster_connections_refused_total", counter, "Connections of API processes beyond the limits.", st.ConnsRefused)
	p.single("ferry_cluster_ended_total", counter, "Reservations that were ended since nobody had heard of them.", st.Ended)
	p.single("ferry_cluster_complaints_total", counter, "Callers that did not get past the handshake.", st.ServerErrors)
	p.certificate(st.NotAfter)
}

func (p *page) fleet(st fleet.Stats) {
	p.family("ferry_fleet_relays", gauge, "Relays in the registry, dead ones too.")
	p.sample("ferry_fleet_relays", count(st.Live), "state", "live")
	p.sample("ferry_fleet_relays", count(st.Relays-st.Live), "state", "dead")
	p.single("ferry_fleet_placed_total", counter, "Hosts that were placed.", st.Placed)
	p.family("ferry_fleet_refused_total", counter, "Hosts that were not, by the reason.")
	p.sample("ferry_fleet_refused_total", st.Refused, "reason", "full")
	p.sample("ferry_fleet_refused_total", st.Unavailable, "reason", "unavailable")
	p.sample("ferry_fleet_refused_total", st.HomeErrors, "reason", "store")
	p.family("ferry_fleet_tries_failed_total", counter, "Relays that were asked for a host and did not take it, by the reason.")
	p.sample("ferry_fleet_tries_failed_total", st.Full, "reason", "full")
	p.sample("ferry_fleet_tries_failed_total", st.Draining, "reason", "draining")
	p.sample("ferry_fleet_tries_failed_total", st.Silent, "reason", "silent")
	p.single("ferry_fleet_tries_total", counter, "Relays that were asked for a host.", st.Tries)
	p.family("ferry_fleet_released_total", counter, "Reservations that were given up, since the store did not take where they are: those that the relay ended, and those that lapse there.")
	p.sample("ferry_fleet_released_total", st.Released, "result", "ended")
	p.sample("ferry_fleet_released_total", st.ReleasesDropped, "result", "lapsed")
	p.single("ferry_fleet_polls_total", counter, "Readings of the registry.", st.Polls)
	p.single("ferry_fleet_polls_failed_total", counter, "Readings of the registry that failed.", st.PollsFailed)
}

func (p *page) dialer(st cluster.DialerStats) {
	p.single("ferry_cluster_dialed_total", counter, "Connections to relays that were opened.", st.Dialed)
	p.single("ferry_cluster_lines", gauge, "Relays that are reached.", count(st.Relays))
	p.single("ferry_cluster_lost_total", counter, "Reservations whose answer did not come.", st.Lost)
	p.single("ferry_cluster_taken_back_total", counter, "Of them, those that their relay has taken back since.", st.Cancelled)
	p.single("ferry_cluster_given_up_total", counter, "Of them, those that were left to lapse.", st.GivenUp+st.Overflowed)
	p.certificate(st.NotAfter)
}

func (p *page) certificate(end time.Time) {
	p.family("ferry_cluster_certificate_end_seconds", gauge, "When the certificate of this process in its fleet ends, in Unix time.")
	p.seconds("ferry_cluster_certificate_end_seconds", float64(end.Unix()))
}
