// Package memory keeps the relay within the memory that it was given.
//
// It owns the answer to two questions: how much memory may this process use
// ([ReadLimit]), and does it use so much of it that it should take on nothing
// new ([Guard]). Whoever asks for an allocation is then told to come back later,
// which is better for everybody than to be killed by the kernel with all the
// matches that are under way.
package memory
