// Package quota limits what one project may use of a relay or a fleet at once.
//
// A [Guard] compares the usage of a project with its [Limits] at each allocate and join.
// A callback returns the usage: on one machine from the relay, in a fleet from the store
// to which the relays report. The guard keeps no counts of its own, so restarts and
// changes of limits need no special handling. Only new allocations are refused: a quota
// ends no match, and an existing allocation may bind again at any time.
//
// # Limitations
//
// The comparison precedes the reservation, so concurrent calls may exceed a limit by
// their number. If the usage is unknown, the reservation is admitted: a quota is for
// accounting, and the relay has its own limits for protection. A relay counts the first
// 1,023 tenants of its run separately, each a project with one environment; later ones
// are in no quota. Allocations that have not come back yet after a restart are not
// counted.
package quota
