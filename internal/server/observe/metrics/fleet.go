package metrics

import (
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
)

func writeStore(p *page, st redisstore.Stats) {
	p.family("ferry_store_calls_total", counter, "Calls to the store by result: ok, failed, or refused while the circuit breaker is open.")
	p.sample("ferry_store_calls_total", st.Calls-min(st.Failed, st.Calls), "result", "ok")
	p.sample("ferry_store_calls_total", st.Failed, "result", "failed")
	p.sample("ferry_store_calls_total", st.Refused, "result", "refused")
	p.single("ferry_store_away", gauge, "1 while the circuit breaker of the store is open.", boolGauge(st.Open))
	p.single("ferry_store_outages_total", counter, "Times that the circuit breaker of the store has opened.", st.Opened)
	p.single("ferry_store_damaged_total", counter, "Values in the store that Ferry did not write.", st.Damaged)
	p.single("ferry_store_unverified_total", counter,
		"Entries of the store without a valid signature of a relay or an API process, counted at each reading. They count as absent.", st.Unverified)
	p.single("ferry_store_connections", gauge, "Open connections to the store.", count(st.Connections))
	p.single("ferry_store_connections_idle", gauge, "Open connections to the store that are not in use.", count(st.Idle))
	p.family("ferry_store_forgotten_total", counter, "Ended hosts by the fate of their join code: dropped, or left to expire because the queue was full.")
	p.sample("ferry_store_forgotten_total", st.Forgotten, "result", "dropped")
	p.sample("ferry_store_forgotten_total", st.Overflow, "result", "left")
}

func writeAnnouncer(p *page, st placement.AnnouncerStats) {
	p.single("ferry_announcer_beats_total", counter, "Heartbeats that the store has accepted.", st.Heartbeats)
	p.single("ferry_announcer_failed_total", counter, "Calls of the announcer that failed.", st.Failed)
	p.single("ferry_announcer_renewals_total", counter, "Calls that announced hosts to the store.", st.Renewals)
	p.single("ferry_announcer_renewed_hosts_total", counter, "Hosts announced to the store, counted at each announcement.", st.RenewedHosts)
	p.single("ferry_announcer_drops_total", counter, "Calls that announced ended hosts to the store.", st.Drops)
	p.family("ferry_announcer_discarded_total", counter, "Hosts, ends and moved join codes that are not announced to the store because the memory of the announcer is full.")
	p.sample("ferry_announcer_discarded_total", st.HostsDropped, "what", "hosts")
	p.sample("ferry_announcer_discarded_total", st.EndsDropped, "what", "ends")
	p.sample("ferry_announcer_discarded_total", st.MovesDropped, "what", "moves")
	p.single("ferry_announcer_moves_total", counter, "Join codes that passed to the new host of a migration.", st.Moves)
	p.single("ferry_announcer_ends", gauge, "Ended hosts that are not yet announced to the store.", count(st.Ends))
	p.single("ferry_announcer_hosts", gauge, "Hosts that are announced to the store.", count(st.Hosts))
	p.single("ferry_announcer_lost_codes_total", counter, "Join codes that now lead to another host because the store had lost them.", st.Lost)
}

func writeCluster(p *page, st rpc.ServerStats) {
	p.single("ferry_cluster_answered_total", counter, "Calls of API processes that succeeded.", st.Answered)
	p.family("ferry_cluster_refused_total", counter, "Calls of API processes that were refused, by reason.")
	p.samples("ferry_cluster_refused_total", st.Refused, "reason")
	p.single("ferry_cluster_reserved_total", counter, "Reservations that were made for API processes.", st.Reserved)
	p.single("ferry_cluster_repeated_total", counter, "Calls that got the outcome of an earlier call with the same key.", st.Repeated)
	p.single("ferry_cluster_cancelled_total", counter, "Idempotency keys that API processes cancelled.", st.Cancelled)
	p.single("ferry_cluster_operated_total", counter, "Commands of operators that were executed.", st.OperatorCalls)
	p.single("ferry_cluster_running", gauge, "Reservations in progress.", count(st.Running))
	p.single("ferry_cluster_remembered", gauge, "Outcomes that are kept for repeated calls.", count(st.Remembered))
	p.single("ferry_cluster_forgotten_total", counter, "Outcomes that were dropped early because there were too many.", st.Forgotten)
	p.single("ferry_cluster_connections_refused_total", counter, "Connections that were refused because of a limit.", st.ConnsRefused)
	p.single("ferry_cluster_ended_total", counter, "Reservations that were ended because they were cancelled or late.", st.Ended)
	p.single("ferry_cluster_complaints_total", counter, "Errors of the cluster listener, most of them failed handshakes.", st.ServerErrors)
	p.certificate(st.NotAfter)
}

func writeFleet(p *page, st placement.Stats) {
	p.family("ferry_fleet_relays", gauge, "Relays in the registry, by state.")
	p.sample("ferry_fleet_relays", count(st.Relays-st.Dead-st.Stopped-st.Unknown), "state", "live")
	p.sample("ferry_fleet_relays", count(st.Dead), "state", "dead")
	p.sample("ferry_fleet_relays", count(st.Stopped), "state", "stopped")
	p.sample("ferry_fleet_relays", count(st.Unknown), "state", "unknown")
	p.single("ferry_fleet_placed_total", counter, "Hosts that were placed on a relay.", st.Placed)
	p.family("ferry_fleet_relay_dead", gauge, "1 for a relay that is dead, else 0.")
	for _, r := range st.PerRelay {
		p.sample("ferry_fleet_relay_dead", boolGauge(r.Dead), "relay", r.Relay.String(), "region", r.Region)
	}
	p.family("ferry_fleet_refused_total", counter, "Hosts that were not placed, by the region of the request and by reason.")
	for _, r := range st.Refused {
		p.sample("ferry_fleet_refused_total", r.Full, "region", r.Region, "reason", "full")
		p.sample("ferry_fleet_refused_total", r.Draining, "region", r.Region, "reason", "draining")
		p.sample("ferry_fleet_refused_total", r.NoRelay, "region", r.Region, "reason", "no_relay")
		p.sample("ferry_fleet_refused_total", r.Unavailable, "region", r.Region, "reason", "unavailable")
		p.sample("ferry_fleet_refused_total", r.Store, "region", r.Region, "reason", "store")
	}
	p.family("ferry_fleet_tries_failed_total", counter, "Reservations of hosts that a relay did not make, by reason.")
	p.sample("ferry_fleet_tries_failed_total", st.Full, "reason", "full")
	p.sample("ferry_fleet_tries_failed_total", st.Draining, "reason", "draining")
	for _, r := range st.PerRelay {
		p.sample("ferry_fleet_tries_failed_total", r.Silent, "relay", r.Relay.String(), "region", r.Region, "reason", "silent")
	}
	p.single("ferry_fleet_tries_total", counter, "Reservations of hosts that were requested from relays.", st.Tries)
	p.family("ferry_fleet_released_total", counter, "Reservations that were released because the store did not accept their home: ended by the relay, or left to expire.")
	p.sample("ferry_fleet_released_total", st.Released, "result", "ended")
	p.sample("ferry_fleet_released_total", st.ReleasesDropped, "result", "lapsed")
	p.single("ferry_fleet_polls_total", counter, "Reads of the registry.", st.Polls)
	p.single("ferry_fleet_polls_failed_total", counter, "Reads of the registry that failed.", st.PollsFailed)
}

func writeDialer(p *page, st rpc.DialerStats) {
	p.single("ferry_cluster_dialed_total", counter, "Connections that were opened to relays.", st.Dialed)
	p.single("ferry_cluster_lines", gauge, "Relays with a connection pool.", count(st.Relays))
	p.single("ferry_cluster_lost_total", counter, "Reservations whose answer did not arrive.", st.Lost)
	p.single("ferry_cluster_taken_back_total", counter, "Reservations without an answer that their relay has cancelled.", st.Cancelled)
	p.single("ferry_cluster_given_up_total", counter, "Reservations without an answer that were left to expire.", st.GivenUp+st.Overflowed)
	p.certificate(st.NotAfter)
}

func (p *page) certificate(end time.Time) {
	p.family("ferry_cluster_certificate_end_seconds", gauge, "Time at which the cluster certificate of this process expires, in Unix seconds.")
	p.seconds("ferry_cluster_certificate_end_seconds", float64(end.Unix()))
}
