// Package admin answers the operator: /metrics, /livez, /readyz, and an index
// of them at /.
//
// It owns the questions "does this process still work" and "should it be sent
// anything". /livez asks the relay itself, with a datagram through its UDP
// socket and back, and looks whether any worker is stuck in one batch; it does
// not depend on anything outside the process, so that a failure elsewhere
// restarts nothing here. /readyz is yes between start and the begin of the end.
//
// There is no authentication: the listener belongs on loopback, which
// [AddrAllowed] insists on unless told otherwise.
package admin
