// Package quota owns what one project may use of a relay or a fleet at once, and
// who refuses it more.
//
// A [Guard] compares what a project uses with its [Limits] at each allocate and
// join. What it uses comes from a callback, so that one machine, which counts
// with a [Tally], and a fleet, whose relays report to a store, are the same to
// it. Only new allocations are refused: a quota ends no match, and who has an
// allocation binds again at will.
//
// # Limitations
//
// The comparison comes before the reservation, so calls that are under way
// together may go beyond a limit by their number. If nobody can say what a
// project uses, it is let in: a quota is about accounts, and the relay has limits
// of its own that protect it. A Tally knows what was reserved since it was made:
// allocations that came back after a restart are not counted until they are
// reserved anew, and it knows nothing of bandwidth.
package quota
