// Command peers compares Ferry with other relays under the same load from the same
// generator, interleaved in rounds, and reports ratios. It starts each relay on a
// processor of its own, on loopback or behind a veth pair between two network
// namespaces, and stops all of them.
//
//	peers [options]       build, measure, print, write out/peers.json
//	peers pin CPU CMD...  run CMD on one processor
//	peers frames [options]   the fast path against the C loop, with frames that XDP sends;
//	                      writes out/peers-frames.json
//	peers embed ..., peers bounce ...   relays of peers frames as processes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

func main() {
	// The kernel kills a child when the thread that started it ends (see
	// start), so this thread, which does not end, starts all children.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch rest := args[1:]; args[0] {
		case "pin":
			if len(rest) > 1 {
				return pin(rest[0], rest[1:])
			}
		case "frames":
			return frames(ctx, rest)
		case "embed":
			return embed(ctx, rest)
		case "bounce":
			return bounce(ctx, rest)
		}
	}
	o, err := parseOptions(args, os.Stderr)
	if err != nil {
		return err
	}
	if o.pinned {
		return measure(ctx, o)
	}
	return prepare(ctx, o, args)
}

// prepare builds all programs on all processors, and then replaces this process
// by a pinned one that measures.
func prepare(ctx context.Context, o options, args []string) error {
	if n := runtime.NumCPU(); n < 2 {
		return fmt.Errorf("this process may use %d processor; the relay and the generator need one each", n)
	}
	if err := o.leaveOut(); err != nil {
		return err
	}
	if err := build(ctx, o); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if o.remote() {
		return inVeth(ctx, o, []string{self}, args)
	}
	return pin(strconv.Itoa(o.generatorCPU), append([]string{self, "--pinned"}, args...))
}

// pin replaces this process by another program that may use one processor only.
func pin(cpu string, argv []string) error {
	n, err := strconv.Atoi(cpu)
	if err != nil {
		return fmt.Errorf("processor %q: %w", cpu, err)
	}
	if err := sock.PinThread(n); err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, argv, os.Environ()))
}
