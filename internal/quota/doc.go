// Package quota owns what one project may use of a relay or a fleet at once, and
// who refuses it more.
//
// A [Guard] compares what a project uses with its [Limits] at each allocate and
// join. What it uses comes from a callback, so that one machine, whose relay is
// asked, and a fleet, whose relays report to a store, are the same to it. It keeps
// no count of its own: who came back after a restart, and who was there before a
// project got a limit, is in what the relay says. Only new allocations are refused: a quota ends no match, and who has an
// allocation binds again at will.
//
// # Limitations
//
// The comparison comes before the reservation, so calls that are under way
// together may go beyond a limit by their number. If nobody can say what a
// project uses, it is let in: a quota is about accounts, and the relay has limits
// of its own that protect it. A relay counts the first 1,023 tenants of its run
// apart, each a project with one environment; those beyond are in no quota. Who
// has yet to come back after a restart is not counted either.
package quota
