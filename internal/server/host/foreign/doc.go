// Package foreign detects sockets of other processes on the relay's UDP port, and finds the process
// that holds a port.
//
// A process of the same user may join a group of SO_REUSEPORT sockets, and the kernel then
// gives it a share of the players' datagrams. A relay cannot prevent that, but the operator
// must learn of it. The package reads the sockets on Linux; on other systems it detects
// none.
package foreign
