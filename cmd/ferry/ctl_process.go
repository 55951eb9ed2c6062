package main

import (
	"github.com/ferryrelay/ferry/cmd/ferry/internal/ctl"
	"github.com/urfave/cli/v3"
)

func configCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "config", Usage: "show the settings in force, without secrets, and their sources",
		Description: "Example:\n   ferry ctl config",
		Flags:       answerFlags(),
	}, show(ctl.Settings)}
}

func reloadCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "reload", Usage: "reload the settings file, certificate and tokens, as SIGHUP does",
		Description: `Tokens, issuers, quotas, the admission program, webhooks, the limits of requests
and of relayed traffic, max_seats, log_level, capture, the
certificate and the token of the admin pages change at once; the output names the other
settings, which need a restart. If any setting is invalid, nothing changes. Calls in
progress, queued webhooks and the counters of limits are kept.

Example:
   ferry ctl reload`,
		Flags: answerFlags(),
	}, show(ctl.Reload)}
}

func upgradeCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "upgrade", Usage: "let a new process of the program on the disk take over, as SIGUSR2 does",
		Description: `For ferry serve on Linux, after its binary or settings that need a restart were
replaced. The running process starts the program again with its arguments. The new one
reads the settings and checks all that can fail; if it fails, the running one goes on and
this command says why. Else the new one takes over all sockets and matches: no datagram
over UDP is lost, sessions of DTLS go on, and WebSockets stay open: the old process passes
their messages on to the new one, and ends when the last of them has. It is refused within
--recover-for after a restart, in a drain, and in a container, which would end with the old
process. Listen addresses, transports and the number of workers must stay the same.

Example:
   ferry ctl upgrade`,
		Flags: answerFlags(),
	}, show(ctl.Upgrade)}
}

func logLevelCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "log-level", Usage: "show or change the log level", ArgsUsage: "[LEVEL]",
		Description: "LEVEL is debug, info, warn or error.\n\nExample:\n   ferry ctl log-level debug",
		Flags:       answerFlags(),
	}, showOf(ctl.Level)}
}

func fastPathCommand() ctlCommand {
	return ctlCommand{&cli.Command{
		Name: "fast-path", Usage: "show the program in the kernel, or turn it on or off", ArgsUsage: "[STATE]",
		Description: `STATE is on or off. While it is off, all datagrams go through the sockets; matches go on.
A restart turns it on again, if the setting xdp asks for it.

Example:
   ferry ctl fast-path off`,
		Flags: answerFlags(),
	}, showOf(ctl.FastPath)}
}
