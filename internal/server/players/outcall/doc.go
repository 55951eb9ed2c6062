// Package outcall calls the HTTP servers that an operator has named: those that
// publish keys, decide about players or receive events.
//
// It enforces the limits of such a call, whatever the server answers: no plain HTTP over
// a public network, no redirects, a time-out, and a maximum size of the response.
package outcall
