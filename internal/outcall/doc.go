// Package outcall calls the HTTP servers that an operator has named: those that
// publish keys, decide about players or want to hear of them.
//
// It owns what such a call may not do, whatever the other side answers: travel
// unprotected over a public network, follow a redirect to somewhere else, last
// longer than it was given, or bring more bytes than the caller asked for.
package outcall
