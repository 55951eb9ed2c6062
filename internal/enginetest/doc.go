// Package enginetest helps to test what is built on a relay. [Start] runs one
// on loopback for the length of a test, and [UTP] plays a real game client
// against it, or against any other relay that speaks the protocol.
//
// The client model is written from the published text and from observed
// behaviour alone: it shares no code with the relay, so that one misreading
// cannot hide in both.
package enginetest
