// Package quota limits what one project may use of a relay or a fleet at once.
//
// A [Guard] compares the usage of a project with its [Limits] at each allocate and join.
// The guard keeps no counts of its own, so restarts and changes of limits need no special
// handling. Only new allocations are refused: a quota ends no match, and an existing
// allocation may bind again at any time.
//
// On one machine the relay calls [Guard.Check] while it reserves, so limits of
// allocations and players hold exactly. [Guard.Admit] precedes it, so that calls beyond a
// quota do not reach the operator's admission program. In a fleet there is Admit only.
//
// # Limitations
//
// A fleet may exceed a limit by what is reserved between two reports of a relay, 2 s. A
// report counts for 10 s, also after its relay has died or lost the store; then the
// allocations of that relay do not count until it reports again. The players of a quota
// are those that have bound, so as many more as are reserved at once may bind later. The
// rate of bytes is that of the last 2 s; see privateapi.ProjectUsage for when it may be too
// high. Allocations that have not come back yet after a restart are not counted.
package quota
