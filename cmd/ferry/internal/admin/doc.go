// Package admin answers the operator: /metrics, /livez, /readyz, /drain, and an
// index of them at /.
//
// It owns the questions "does this process still work" and "should it be sent
// anything". /livez asks the relay itself, with a datagram through its UDP
// socket and back, and looks whether any worker is stuck in one batch; it does
// not depend on anything outside the process, so that a failure elsewhere
// restarts nothing here. /readyz is yes between start and the begin of the end.
//
//	GET /drain                              is it running dry, as JSON
//	POST /drain?deadline=1h&threshold=0     take no new allocations, exit when the others have ended
//	DELETE /drain                           take new allocations again
//
// There is no authentication: the listener belongs on loopback, which
// [AddrAllowed] insists on unless told otherwise. Web pages are kept out all the
// same, as a browser of the operator's reaches loopback.
package admin
